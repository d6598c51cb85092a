#include "runtime/kernels/elementwise.h"
#include "ir/f8_scales.h"
#include "ir/quantized_numbers.h"
#include "kernels/cpu/elementwise/binary.h"
#include "kernels/cpu/elementwise/cast.h"
#include "kernels/cpu/elementwise/dequantize.h"
#include "kernels/cpu/elementwise/f8.h"
#include "kernels/cpu/elementwise/unary.h"
#include "kernels/cpu/move/move.h"
#include "runtime/cpu/fused.h"
#include "runtime/cpu/random_stream.h"

#include <limits>

namespace plimsoll {
namespace {

Status map_unary(const CpuCall& k, cpu::UnaryRange* range, double a = 0, double b = 0) {
  cpu::map_unary(range, k.out<float>("y"), k.in<float>("x"), k.elements(), static_cast<float>(a),
                 static_cast<float>(b));
  return Status::success();
}

Status launch_clip(const CpuCall& k) {
  const double infinity = std::numeric_limits<double>::infinity();
  return map_unary(k, cpu::clip_range, k.attrs().get_float("min", -infinity), k.attrs().get_float("max", infinity));
}

Status launch_gelu(const CpuCall& k) {
  return map_unary(k, is_tanh_form(k.call) ? cpu::gelu_tanh_range : cpu::gelu_range);
}

Status map_grad(const CpuCall& k, cpu::UnaryGradRange* range) {
  cpu::map_unary_grad(range, k.out<float>("dx"), k.in<float>(0), k.in<float>("dy"), k.elements());
  return Status::success();
}

Status launch_gelu_grad(const CpuCall& k) {
  return map_grad(k, is_tanh_form(k.call) ? cpu::gelu_tanh_grad_range : cpu::gelu_grad_range);
}

bool is_cast(DType dtype) { return !is_f8(dtype) && dtype != DType::U64; }

bool accepts_cast(const OpCall& call, llvm::ArrayRef<Type> results) {
  return is_cast(call["x"].dtype) && is_cast(results[0].dtype);
}

Status launch_cast(const CpuCall& k) {
  cpu::cast_elements(k.out("y"), k.out_scalar("y"), k.in("x"), k.in_scalar("x"), k.elements());
  return Status::success();
}

Status launch_copy(const CpuCall& k) {
  cpu::copy_bytes(k.out(0), k.in(0), k.results[0].type.bytes());
  return Status::success();
}

Status launch_to_device(const CpuCall& k) {
  const auto* from = static_cast<const std::byte*>(k.in(0)) + k.call.get_int("begin") * k.element_bytes();
  cpu::copy_bytes(k.out(0), from, k.results[0].type.bytes());
  return Status::success();
}

// ---- Several operands ----

template <typename T>
constexpr DType dtype_of = std::is_same_v<T, float>     ? DType::F32
                           : std::is_same_v<T, int64_t> ? DType::I64
                                                        : DType::Bool;

template <typename In>
bool accepts_pair(const OpCall& call, llvm::ArrayRef<Type> results) {
  return call.operand(0).dtype == dtype_of<In> && call.operand(1).dtype == dtype_of<In> && ranks_fit(call, results);
}

template <typename Out, typename In>
Status map_pair(const CpuCall& k, cpu::BinaryRange<Out, In>* range) {
  cpu::map_binary(range, broadcast_call<2>(k), k.out<Out>("y"), k.in<In>(0), k.in<In>(1));
  return Status::success();
}

Status launch_mod(const CpuCall& k) { return map_pair(k, k.call.get_int("fmod") ? cpu::fmod_range : cpu::mod_range); }

bool accepts_where(const OpCall& call, llvm::ArrayRef<Type> results) {
  return dtype_bytes(results[0].dtype) == 4 && ranks_fit(call, results);
}

Status launch_where(const CpuCall& k) {
  cpu::where_32(broadcast_call<3>(k), k.out<uint32_t>("y"), k.in<uint8_t>("condition"), k.in<uint32_t>("a"),
                k.in<uint32_t>("b"));
  return Status::success();
}

Status launch_not(const CpuCall& k) {
  cpu::logical_not(k.out<uint8_t>("y"), k.in<uint8_t>("x"), k.elements());
  return Status::success();
}

bool accepts_bool(const OpCall& call, llvm::ArrayRef<Type>) { return call["x"].dtype == DType::Bool; }

// The list of operands has any length; its room is made when the plan is loaded.
struct PreparedSum : PreparedKernel {
  std::vector<const float*> operands;
};

Result<std::unique_ptr<PreparedKernel>> prepare_add_n(cpu::Library&, const OpCall& call, llvm::ArrayRef<Type>) {
  auto prepared = std::make_unique<PreparedSum>();
  prepared->operands.resize(call.count());
  return prepared;
}

Status launch_add_n(const CpuCall& k) {
  std::vector<const float*>& operands = static_cast<PreparedSum*>(k.prepared)->operands;
  for (size_t i = 0; i < operands.size(); ++i) operands[i] = k.in<float>(i);
  cpu::add_many(k.out<float>("y"), operands.data(), static_cast<int64_t>(operands.size()), k.elements());
  return Status::success();
}

bool draws_by_planes(const OpCall& call) { return call.get_int("channels_last") != 0 && call["x"].rank() > 2; }

// Elements with channels first, in whose order they draw.
int64_t planes_bytes(const OpCall& call, llvm::ArrayRef<Type>) {
  return draws_by_planes(call) ? call["x"].elements() * static_cast<int64_t>(sizeof(float)) : 0;
}

Status launch_dropout(const CpuCall& k) {
  if (draws_by_planes(k.call)) {
    const llvm::ArrayRef<int64_t> shape = k.in_shape("x");
    const int64_t positions = element_count(shape.drop_front().drop_back()), channels = shape.back();
    const auto nest = [&](std::array<int64_t, 2> channel_steps, std::array<int64_t, 2> position_steps) {
      LoopNest<2> nest;
      nest.add_dimension(shape[0], {positions * channels, positions * channels});
      nest.add_dimension(channels, channel_steps);
      nest.add_dimension(positions, position_steps);
      return nest;
    };
    auto* planes = k.scratch<float>();
    cpu::copy_strided(nest({positions, 1}, {1, channels}), planes, k.in("x"), sizeof(float));
    cpu::dropout(random_stream(k), element_dropout(k.attrs()), planes, planes, k.elements());
    cpu::copy_strided(nest({1, positions}, {channels, 1}), k.out("y"), planes, sizeof(float));
    return Status::success();
  }
  cpu::dropout(random_stream(k), element_dropout(k.attrs()), k.out<float>("y"), k.in<float>("x"), k.elements());
  return Status::success();
}

Status launch_dequantize(const CpuCall& k) {
  const CodeNumbers& numbers = code_numbers(k.call.get_string("format"));
  cpu::BlockScales scales{.map = dynamic_map(true).data()};
  if (k.has("scale_scales")) {
    scales.scale_codes = k.in<uint8_t>("scales");
    scales.scale_scales = k.in<float>("scale_scales");
    scales.offset = k.in<float>("offset");
  } else {
    scales.scales = k.in("scales");
    scales.scale_type = k.in_scalar("scales");
  }
  cpu::dequantize({numbers.bits, numbers.values.data(), numbers.factor, k.call.get_int("block")}, k.out("y"),
                  k.out_scalar("y"), k.in<uint8_t>("codes"), scales, k.elements());
  return Status::success();
}

Status launch_dequantize_linear(const CpuCall& k) {
  const llvm::StringRef format = k.call.get_string("format");
  const CodeNumbers& numbers = code_numbers(format);
  const llvm::ArrayRef<int64_t> shape = k.call.get_ints("shape");
  cpu::DequantizeLinear how{.bits = numbers.bits,
                            .values = numbers.values.data(),
                            .rows = shape[0],
                            .columns = shape[1],
                            .block_rows = k.call.get_int("block_rows"),
                            .block = k.call.get_int("block"),
                            .scales = k.in("scales"),
                            .scale_type = k.in_scalar("scales"),
                            .zero = static_cast<float>(k.call.get_int("zero"))};
  if (k.has("zeros")) {
    how.zeros = k.in<uint8_t>("zeros");
    how.zeros_per_row = zeros_per_row(format, linear_grid(shape, how.block_rows, how.block), &k.operand("zeros").type);
  }
  cpu::dequantize_linear(how, k.out("y"), k.out_scalar("y"), k.in<uint8_t>("codes"));
  return Status::success();
}

bool is_of_f32(const OpCall& call, llvm::ArrayRef<Type>) { return call["x"].dtype == DType::F32; }

Status launch_f8_scale(const CpuCall& k) {
  *k.out<float>("scale") =
      cpu::f8_scale(k.in<float>("x"), k.operand("x").elements(), scalar_of(k.attrs().get_dtype("to")));
  return Status::success();
}

Status launch_to_f8(const CpuCall& k) {
  const Type& x = k.call["x"];
  const int64_t columns = x.shape.back(), rows = columns == 0 ? 0 : x.elements() / columns;
  cpu::to_f8(k.in<float>("x"), rows, columns, *k.in<float>("scale"), scalar_of(k.attrs().get_dtype("to")),
             k.out_if_given<uint8_t>("codes"), k.out_if_given<uint8_t>("turned"));
  return Status::success();
}

Status launch_to_scaled_f8(const CpuCall& k) {
  const Type& x = k.call["x"];
  const F8Scales by = *parse_f8_scales(k.call.get_string("by"));
  const int64_t columns = x.shape.back(), rows = columns == 0 ? 0 : x.elements() / columns;
  const auto make = [&](const F8Grid& grid, PortKey codes, PortKey scales, cpu::Layout layout) {
    cpu::to_scaled_f8(k.in<float>("x"), rows, columns,
                      {grid.block_rows, grid.block_columns, grid.row_step, grid.column_step},
                      scalar_of(k.attrs().get_dtype("to")), k.out<float>(scales), k.result(scales).elements(),
                      k.out<uint8_t>(codes), layout);
  };
  if (k.call.gives("codes")) make(f8_grid(by, rows, columns), "codes", "scales", cpu::Layout::AsIs);
  if (k.call.gives("turned")) make(f8_grid(by, columns, rows).turned(), "turned", "turned_scales", cpu::Layout::Turned);
  return Status::success();
}

constexpr CpuKernel elementwise_table[] = {
#define PLIMSOLL_ROW(op, name, accepts, map) {op_##op, name, accepts, [](const CpuCall& k) { return map; }},
#define PLIMSOLL_UNARY(op, Name, formula) PLIMSOLL_ROW(op, "vectorised", all_f32, map_unary(k, cpu::op##_range))
#define PLIMSOLL_UNARY_WITH(op, Name, first, second, formula) \
  PLIMSOLL_ROW(op, "vectorised", all_f32,                     \
               map_unary(k, cpu::op##_range, k.call.get_float(#first), k.call.get_float(#second)))
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) PLIMSOLL_ROW(op, "vectorised", all_f32, map_grad(k, cpu::op##_range))
#define PLIMSOLL_BINARY(op, Name, formula) \
  PLIMSOLL_ROW(op, "vectorised", accepts_pair<float>, map_pair(k, cpu::op##_range))
#define PLIMSOLL_COMPARE(op, Name, formula) \
  PLIMSOLL_BINARY(op, Name, formula)        \
  PLIMSOLL_ROW(op, "vectorised_i64", accepts_pair<int64_t>, map_pair(k, cpu::op##_i64_range))
#define PLIMSOLL_LOGIC(op, Name, formula) \
  PLIMSOLL_ROW(op, "vectorised", accepts_pair<bool>, map_pair(k, cpu::op##_range))
#define PLIMSOLL_BITWISE(op, Name, formula)
#include "kernels/elementwise.def"
#undef PLIMSOLL_ROW
    {op_gelu, "vectorised", all_f32, launch_gelu},
    {op_gelu_grad, "vectorised", all_f32, launch_gelu_grad},
    {op_clip, "vectorised", all_f32, launch_clip},
    {op_cast, "vectorised", accepts_cast, launch_cast},
    {op_not, "vectorised", accepts_bool, launch_not},
    {op_mod, "vectorised", accepts_pair<float>, launch_mod},
    {op_where, "vectorised", accepts_where, launch_where},
    {op_add_n, "vectorised", all_f32, launch_add_n, nullptr, prepare_add_n},
    {op_dropout, "vectorised", floats_are_f32, launch_dropout, planes_bytes},
    {op_fused, "blocks", accepts_fused, launch_fused, fused_workspace, prepare_fused},
    {op_dequantize, "blocks", accepts_everything, launch_dequantize},
    {op_dequantize_linear, "columns", accepts_everything, launch_dequantize_linear},
    {op_f8_scale, "vectorised", is_of_f32, launch_f8_scale},
    {op_to_f8, "tiles", is_of_f32, launch_to_f8},
    {op_to_scaled_f8, "tiles", is_of_f32, launch_to_scaled_f8},
    {op_copy, "bytes", accepts_everything, launch_copy},
    {op_to_host, "bytes", accepts_everything, launch_copy},
    {op_to_device, "bytes", accepts_everything, launch_to_device},
    {op_identity, "bytes", accepts_everything, launch_copy},
    {op_detach, "bytes", accepts_everything, launch_copy},
    {op_reshape, "bytes", accepts_everything, launch_copy},
};

}  // namespace

llvm::ArrayRef<CpuKernel> elementwise_kernels() { return elementwise_table; }

}  // namespace plimsoll
