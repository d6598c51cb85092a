#include "kernels/cuda/elementwise/elementwise.h"
#include "ir/quantized_numbers.h"
#include "kernels/cuda/elementwise/dequantize.h"
#include "kernels/cuda/elementwise/f8.h"
#include "kernels/cuda/elementwise/random.h"
#include "kernels/cuda/elementwise/scaled_f8.h"
#include "kernels/cuda/move/move.h"
#include "runtime/cuda/backend/fused.h"
#include "runtime/kernels/elementwise.h"

#include <algorithm>
#include <limits>

namespace plimsoll {
namespace {

static_assert(max_add_n_terms == cuda::max_terms);

using cuda::Binary;
using cuda::Test;
using cuda::Unary;
using cuda::UnaryGrad;

// ---- One operand ----

Status map_unary(const CudaCall& k, Unary f, double a = 0, double b = 0) {
  return launched(k, cuda::map_unary(f, a, b, k.out_scalar("y"), k.out("y"), k.in("x"), k.elements(), k.stream));
}

Status launch_clip(const CudaCall& k) {
  const double infinity = std::numeric_limits<double>::infinity();
  return map_unary(k, Unary::Clip, k.attrs().get_float("min", -infinity), k.attrs().get_float("max", infinity));
}

Status launch_gelu(const CudaCall& k) { return map_unary(k, is_tanh_form(k.call) ? Unary::GeluTanh : Unary::Gelu); }

Status map_grad(const CudaCall& k, UnaryGrad f) {
  return launched(
      k, cuda::map_unary_grad(f, k.out_scalar("dx"), k.out("dx"), k.in(0), k.in("dy"), k.elements(), k.stream));
}

Status launch_gelu_grad(const CudaCall& k) {
  return map_grad(k, is_tanh_form(k.call) ? UnaryGrad::GeluTanhGrad : UnaryGrad::GeluGrad);
}

Status map_test(const CudaCall& k, Test f) {
  return launched(k, cuda::map_test(f, k.in_scalar("x"), k.out<bool>("y"), k.in("x"), k.elements(), k.stream));
}

template <Test f>
Status launch_test(const CudaCall& k) {
  return map_test(k, f);
}

Status launch_is_inf(const CudaCall& k) {
  const bool negative = k.call.get_int("negative") != 0, positive = k.call.get_int("positive") != 0;
  if (negative && positive) return map_test(k, Test::IsInf);
  if (negative) return map_test(k, Test::IsNegativeInf);
  if (positive) return map_test(k, Test::IsPositiveInf);
  return launched(k, cuda::zero_bytes(k.out("y"), k.result("y").type.bytes(), k.stream));
}

Status launch_cast(const CudaCall& k) {
  return launched(
      k, cuda::cast_elements(k.out_scalar("y"), k.out("y"), k.in_scalar("x"), k.in("x"), k.elements(), k.stream));
}

bool casts_join(const CudaCall& first, const CudaCall& next) {
  auto is_16_bit = [](Scalar type) { return type == Scalar::BF16 || type == Scalar::F16; };
  const Scalar x = first.in_scalar("x"), y = first.out_scalar("y");
  return next.in_scalar("x") == x && next.out_scalar("y") == y &&
         ((x == Scalar::F32 && is_16_bit(y)) || (y == Scalar::F32 && is_16_bit(x)));
}

Status launch_casts(llvm::ArrayRef<CudaCall> calls) {
  llvm::SmallVector<cuda::CastTensor, 8> tensors;
  for (const CudaCall& k : calls) tensors.push_back({k.out("y"), k.in("x"), k.elements()});
  const CudaCall& k = calls.front();
  return launched(k, cuda::cast_many(k.out_scalar("y"), k.in_scalar("x"), tensors.data(),
                                     static_cast<int>(tensors.size()), k.stream));
}

Status launch_copy(const CudaCall& k) {
  return launched(k, cuda::copy_bytes(k.out("y"), k.in("x"), k.result("y").type.bytes(), k.stream));
}

Status transfer(const CudaCall& k, int64_t begin_bytes) {
  return launched(k, cudaMemcpyAsync(k.out("y"), static_cast<const std::byte*>(k.in("x")) + begin_bytes,
                                     static_cast<size_t>(k.result("y").type.bytes()), cudaMemcpyDefault, k.stream));
}

Status launch_to_host(const CudaCall& k) { return transfer(k, 0); }

Status launch_to_device(const CudaCall& k) { return transfer(k, k.call.get_int("begin") * k.element_bytes()); }

// ---- Several operands ----

Status map_pair(const CudaCall& k, Binary f) {
  return launched(k, cuda::map_binary(f, broadcast_call<2>(k), k.out_scalar("y"), k.out("y"), k.in_scalar(0), k.in(0),
                                      k.in_scalar(1), k.in(1), k.stream));
}

Status launch_mod(const CudaCall& k) { return map_pair(k, k.call.get_int("fmod") ? Binary::Fmod : Binary::Mod); }

Status launch_shift(const CudaCall& k) {
  return map_pair(k, k.call.get_string("direction") == "left" ? Binary::ShiftLeft : Binary::ShiftRight);
}

Status launch_where(const CudaCall& k) {
  return launched(k, cuda::where(broadcast_call<3>(k), k.element_bytes(), k.out("y"), k.in<bool>("condition"),
                                 k.in("a"), k.in("b"), k.stream));
}

Status launch_add_n(const CudaCall& k) {
  llvm::SmallVector<const void*, 8> terms;
  for (const TensorView& term : k.operands) terms.push_back(term.data);
  return launched(k, cuda::add_many(k.out_scalar("y"), k.out("y"), terms.data(), static_cast<int>(terms.size()),
                                    k.elements(), k.stream));
}

Status launch_dequantize(const CudaCall& k) {
  const CodeNumbers& numbers = code_numbers(k.call.get_string("format"));
  const bool packs_scales = k.has("scale_scales");
  cuda::Dequantize call{.codes = k.in<uint8_t>("codes"),
                        .scales = packs_scales ? nullptr : k.in("scales"),
                        .scale_type = k.in_scalar("scales"),
                        .scale_codes = packs_scales ? k.in<uint8_t>("scales") : nullptr,
                        .scale_scales = k.in<float>("scale_scales"),
                        .offset = k.in<float>("offset"),
                        .block = k.call.get_int("block"),
                        .n = k.elements(),
                        .factor = numbers.factor};
  std::copy(numbers.values.begin(), numbers.values.end(), call.values);
  std::copy(dynamic_map(true).begin(), dynamic_map(true).end(), call.map);
  return launched(k, cuda::dequantize(call, numbers.bits, k.out_scalar("y"), k.out("y"), k.stream));
}

Status launch_dequantize_linear(const CudaCall& k) {
  const llvm::StringRef format = k.call.get_string("format");
  const CodeNumbers& numbers = code_numbers(format);
  const llvm::ArrayRef<int64_t> shape = k.call.get_ints("shape");
  const int64_t block_rows = k.call.get_int("block_rows"), block = k.call.get_int("block");
  cuda::DequantizeLinear call{.codes = k.in<uint8_t>("codes"),
                              .scales = k.in("scales"),
                              .scale_type = k.in_scalar("scales"),
                              .zero = static_cast<float>(k.call.get_int("zero")),
                              .rows = shape[0],
                              .columns = shape[1],
                              .block_rows = block_rows,
                              .block = block};
  if (k.has("zeros")) {
    call.zeros = k.in<uint8_t>("zeros");
    call.zeros_per_row = zeros_per_row(format, linear_grid(shape, block_rows, block), &k.operand("zeros").type);
  }
  std::copy(numbers.values.begin(), numbers.values.end(), call.values);
  return launched(k, cuda::dequantize_linear(call, numbers.bits, k.out_scalar("y"), k.out("y"), k.stream));
}

Status launch_f8_scale(const CudaCall& k) {
  return launched(k, cuda::f8_scale({.x = k.in("x"),
                                     .x_type = k.in_scalar("x"),
                                     .n = k.operand("x").elements(),
                                     .codes = scalar_of(k.attrs().get_dtype("to")),
                                     .scale = k.out<float>("scale"),
                                     .workspace = k.scratch<uint32_t>()},
                                    k.stream));
}

Status launch_to_f8(const CudaCall& k) {
  const Type& x = k.call["x"];
  return launched(k, cuda::to_f8({.x = k.in("x"),
                                  .x_type = k.in_scalar("x"),
                                  .rows = x.elements() / x.shape.back(),
                                  .columns = x.shape.back(),
                                  .scale = k.in<float>("scale"),
                                  .type = scalar_of(k.attrs().get_dtype("to")),
                                  .codes = k.out_if_given<uint8_t>("codes"),
                                  .turned = k.out_if_given<uint8_t>("turned")},
                                 k.stream));
}

cuda::ScaledF8 scaled_f8(const CudaCall& k) {
  const Type& x = k.call["x"];
  return {.x = k.in("x"),
          .x_type = k.in_scalar("x"),
          .rows = x.elements() / x.shape.back(),
          .columns = x.shape.back(),
          .type = scalar_of(k.attrs().get_dtype("to")),
          .codes = k.out_if_given<uint8_t>("codes"),
          .turned = k.out_if_given<uint8_t>("turned"),
          .scales = k.out_if_given<float>("scales"),
          .turned_scales = k.out_if_given<float>("turned_scales")};
}

// ---- Random numbers ----

cuda::RandomStream stream_of(const CudaCall& k) {
  return {k.in<int64_t>("rng"), static_cast<uint32_t>(k.call.get_int("id"))};
}

Status launch_dropout(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.in_shape("x");
  if (k.call.get_int("channels_last") && shape.size() > 2)
    return launched(k, cuda::dropout_channels_last(
                           stream_of(k), element_dropout(k.attrs()), k.out_scalar("y"), k.out("y"), k.in("x"),
                           {shape[0], element_count(shape.drop_front().drop_back()), shape.back()}, k.stream));
  return launched(k, cuda::dropout(stream_of(k), element_dropout(k.attrs()), k.out_scalar("y"), k.out("y"), k.in("x"),
                                   k.elements(), k.stream));
}

Status launch_random_uniform(const CudaCall& k) {
  return launched(k, cuda::random_uniform(stream_of(k), k.call.get_float("low"), k.call.get_float("high"),
                                          k.out_scalar("y"), k.out("y"), k.elements(), k.stream));
}

Status launch_random_normal(const CudaCall& k) {
  return launched(k, cuda::random_normal(stream_of(k), k.call.get_float("mean"), k.call.get_float("scale"),
                                         k.out_scalar("y"), k.out("y"), k.elements(), k.stream));
}

constexpr CudaLauncher elementwise_table[] = {
#define PLIMSOLL_ROW(op, name, map) {op_##op, name, [](const CudaCall& k) { return map; }},
#define PLIMSOLL_UNARY(op, Name, formula) PLIMSOLL_ROW(op, "vectors", map_unary(k, Unary::Name))
#define PLIMSOLL_UNARY_WITH(op, Name, first, second, formula) \
  PLIMSOLL_ROW(op, "vectors", map_unary(k, Unary::Name, k.call.get_float(#first), k.call.get_float(#second)))
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) PLIMSOLL_ROW(op, "vectors", map_grad(k, UnaryGrad::Name))
#define PLIMSOLL_BINARY(op, Name, formula) PLIMSOLL_ROW(op, "broadcast", map_pair(k, Binary::Name))
#include "kernels/elementwise.def"
#undef PLIMSOLL_ROW
    {op_bitwise_not, "vectors", [](const CudaCall& k) { return map_unary(k, Unary::BitwiseNot); }},
    {op_gelu, "vectors", launch_gelu},
    {op_gelu_grad, "vectors", launch_gelu_grad},
    {op_clip, "vectors", launch_clip},
    {op_cast, "vectors", launch_cast, nullptr, casts_join, launch_casts},
    {op_is_nan, "vectors", launch_test<Test::IsNan>},
    {op_is_inf, "vectors", launch_is_inf},
    {op_not, "vectors", launch_test<Test::Not>},
    {op_dropout, "vectors", launch_dropout},
    {op_fused, "generated", launch_fused, prepare_fused},
    {op_fused, "generated_sums", launch_fused, prepare_fused},
    {op_random_uniform, "vectors", launch_random_uniform},
    {op_random_normal, "vectors", launch_random_normal},
    {op_mod, "broadcast", launch_mod},
    {op_bit_shift, "broadcast", launch_shift},
    {op_where, "broadcast", launch_where},
    {op_add_n, "vectors", launch_add_n},
    {op_dequantize, "runs", launch_dequantize},
    {op_dequantize_linear, "runs", launch_dequantize_linear},
    {op_f8_scale, "words", launch_f8_scale},
    {op_to_f8, "tiles", launch_to_f8},
    {op_to_scaled_f8, "rows",
     [](const CudaCall& k) { return launched(k, cuda::rows_to_f8(scaled_f8(k), k.scratch<uint32_t>(), k.stream)); }},
    {op_to_scaled_f8, "blocks",
     [](const CudaCall& k) { return launched(k, cuda::blocks_to_f8(scaled_f8(k), k.stream)); }},
    {op_to_scaled_f8, "tiles",
     [](const CudaCall& k) { return launched(k, cuda::tiles_to_f8(scaled_f8(k), k.stream)); }},
    {op_copy, "bytes", launch_copy},
    {op_identity, "bytes", launch_copy},
    {op_detach, "bytes", launch_copy},
    {op_reshape, "bytes", launch_copy},
    {op_to_host, "copy_engine", launch_to_host},
    {op_to_device, "copy_engine", launch_to_device},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> elementwise_launchers() { return elementwise_table; }

}  // namespace plimsoll
