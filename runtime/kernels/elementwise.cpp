#include "runtime/kernels/elementwise.h"
#include "ir/f8_scales.h"

#include "ir/fused_form.h"
#include "ir/quantized_numbers.h"
#include "kernels/cuda/elementwise/f8_sizes.h"
#include "runtime/kernels/fused_reductions.h"

#include <algorithm>
#include <map>

// CUDA kernels take every dtype but F8, which its own kernels make. Operands of one shape are one loop, whatever their
// rank.

namespace plimsoll {
namespace {

bool accepts_add_n(const OpCall& call, llvm::ArrayRef<Type> results) {
  return call.count() <= max_add_n_terms && has_no_f8(call, results);
}

bool reduces(const OpCall& call) { return has_reductions(*llvm::cantFail(fused_body(call.get_string("body")))); }
bool accepts_elements(const OpCall& call, llvm::ArrayRef<Type>) { return !reduces(call); }
bool accepts_reductions(const OpCall& call, llvm::ArrayRef<Type>) { return reduces(call); }

int64_t reductions_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return reducing_workspace(call, results);
}

// What the vector units do for a fused op, an instruction a lane and clock: half of their FLOP/s, of which a fused
// multiply and add are two. A result of 16 bits is rounded, and a sine is a polynomial of what is left of multiples of
// pi: kernels of two sines and ten more such results took 3.6 ps an element on an H200, 107 instructions.
double instructions_us(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  constexpr double of_sine = 30, of_rounding = 2;
  const FusedBody body = llvm::cantFail(fused_body(call.get_string("body")));
  const bool has_shapes = has_reductions(*body);
  double instructions = 0;
  for (NodeId id : body->order()) {
    const Node& node = body->node(id);
    const Type& result = body->type(node.results[0]);
    const bool is_sine = node.op == &op_sin || node.op == &op_cos;
    const int64_t elements = has_shapes ? result.elements() : results[0].elements();
    instructions +=
        static_cast<double>(elements) * ((is_sine ? of_sine : 1) + (is_16_bit_float(result.dtype) ? of_rounding : 0));
  }
  return device.vector_tflops > 0 ? 2 * instructions / (device.vector_tflops * 1e6) : 0;
}

// The bytes or the instructions, and behind a few tensors the start of each, by which steps of an LSTM's calls are
// bound: of 7 tensors 2.4 us on an H200, of 16 4.0.
double elements_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double tensor_us = 0.2;
  constexpr size_t few_tensors = 4;
  const Types results = llvm::cantFail(infer(call));
  const double bytes_us = device.roofline_us(0, moved_bytes(call, results), std::nullopt);
  const size_t tensors = call.count() + results.size();
  return std::max(bytes_us / device.efficiency_of(call.op.name), instructions_us(call, results, device)) +
         device.launch_us + tensor_us * static_cast<double>(tensors - std::min(tensors, few_tensors));
}

// Operands are read once and results written once, at this share of a copy's speed, or as elements of columns come one
// by one; where blocks leave parts of totals, a second kernel reads these.
double reductions_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double share = 0.85, single_us = 1.05e-6, multiprocessors = 132;
  const Types results = llvm::cantFail(infer(call));
  const int64_t parts = reducing_workspace(call, results);
  const int64_t bytes = 2 * parts + moved_bytes(call, results);
  const double roofline_us = device.roofline_us(op_fused.flops(call, results), bytes, std::nullopt);
  const double columns_us = single_us * static_cast<double>(single_column_elements(call, results)) * multiprocessors /
                            std::max(device.multiprocessors, 1);
  return std::max({roofline_us / share, columns_us, instructions_us(call, results, device)}) +
         (parts > 0 ? 2 : 1) * device.launch_us;
}

bool accepts_f8_scale(const OpCall& call, llvm::ArrayRef<Type>) { return call["x"].elements() > 0; }

int64_t f8_scale_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  const int64_t parts = cuda::f8_parts(call["x"].elements());
  return parts > 1 ? parts * static_cast<int64_t>(sizeof(uint32_t)) : 0;
}

// Threads write 16 codes at once along either layout.
bool accepts_to_f8(const OpCall& call, llvm::ArrayRef<Type>) {
  const Type& x = call["x"];
  const int64_t columns = x.shape.back();
  return x.elements() > 0 && columns % 16 == 0 && (!call.gives("turned") || x.elements() / columns % 16 == 0);
}

// Codes by rows as to_f8 has them, by blocks and tiles whole ones.
bool accepts_scaled(const OpCall& call, F8Scales by, int64_t multiple) {
  const Type& x = call["x"];
  const int64_t columns = x.shape.back();
  if (x.elements() == 0 || call.get_string("by") != f8_scales_name(by) || columns % multiple != 0) return false;
  const bool has_whole_rows = by == F8Scales::Rows && !call.gives("turned");
  return has_whole_rows || x.elements() / columns % multiple == 0;
}
bool accepts_rows_to_f8(const OpCall& call, llvm::ArrayRef<Type>) { return accepts_scaled(call, F8Scales::Rows, 16); }
bool accepts_blocks_to_f8(const OpCall& call, llvm::ArrayRef<Type>) {
  return accepts_scaled(call, F8Scales::Blocks, f8_block);
}
bool accepts_tiles_to_f8(const OpCall& call, llvm::ArrayRef<Type>) {
  return accepts_scaled(call, F8Scales::Tiles, f8_block);
}

// Of the transpose a word for each column.
int64_t rows_to_f8_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return call.gives("turned") ? call["x"].shape.back() * static_cast<int64_t>(sizeof(uint32_t)) : 0;
}

// The transpose takes another reading, by when all columns have been seen.
double rows_to_f8_us(const OpCall& call, const DeviceDescription& device) {
  const Type& x = call["x"];
  const int64_t layouts = (call.gives("codes") ? 1 : 0) + (call.gives("turned") ? 1 : 0);
  const int64_t readings = call.gives("turned") ? 2 : 1, launches = call.gives("turned") ? 3 : 1;
  return device.roofline_us(0, readings * x.bytes() + layouts * x.elements(), std::nullopt) /
             device.efficiency_of(call.op.name) +
         static_cast<double>(launches) * device.launch_us + device.kernel_us;
}

double cast_us(const OpCall& call, const DeviceDescription& device) {
  const Type& x = call["x"];
  const int64_t bytes = x.bytes() + Type(call.attrs.get_dtype("to"), x.shape).bytes();
  return gathered_us(call, x.elements(), bytes, device);
}
bool is_between_16_bits_and_f32(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType x = call["x"].dtype, y = results[0].dtype;
  return (x == DType::F32 && is_16_bit_float(y)) || (y == DType::F32 && is_16_bit_float(x));
}

// Dimensions from the outermost to the innermost, joined where every operand has all elements of both or repeats along
// both.
struct BroadcastLines {
  llvm::SmallVector<int64_t, 4> sizes;
  llvm::SmallVector<llvm::SmallVector<bool, 4>, 4> walks;  // by operand, by dimension

  BroadcastLines(const OpCall& call, llvm::ArrayRef<int64_t> shape) : walks(call.count()) {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      const auto has = [&](size_t operand) {
        const Shape& own = call.operand(operand).shape;
        const size_t missing = shape.size() - own.size();
        return d >= missing && own[d - missing] != 1;
      };
      bool joins = !sizes.empty();
      for (size_t i = 0; i < call.count() && joins; ++i) joins = walks[i].back() == has(i);
      if (!joins) {
        sizes.push_back(1);
        for (size_t i = 0; i < call.count(); ++i) walks[i].push_back(has(i));
      }
      sizes.back() *= shape[d];
    }
  }
};

// The bytes, or what a thread does for its run and for each of its elements, fitted to 9 calls on an H200 (2026-11-30):
// elements of operands that have some of all come as whole runs where these divide a line, and one by one elsewhere.
// Where all operands have all elements, or one number, the bytes decide as of any kernel without a time of its own.
double broadcast_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double of_copy = 0.97, run_us = 4e-6, short_lines_us = 0.7e-6, multiprocessors = 132;
  constexpr double in_runs_us = 0.17e-6, one_by_one_us = 0.3e-6, repeated_us = 0.15e-6;
  const Types results = llvm::cantFail(infer(call));
  const BroadcastLines lines(call, results[0].shape);
  if (lines.sizes.size() < 2 || device.memory_gb_per_s <= 0) return 0;
  int64_t narrowest = dtype_bytes(results[0].dtype);
  for (size_t i = 0; i < call.count(); ++i) narrowest = std::min(narrowest, dtype_bytes(call.operand(i).dtype));
  const int64_t run = narrowest <= 2 ? 8 : 16 / narrowest, line = lines.sizes.back();
  double element_us = run_us / static_cast<double>(run) + (line < run ? short_lines_us : 0);
  for (const auto& walks : lines.walks)
    if (!llvm::all_of(walks, [](bool walk) { return walk; }))
      element_us += !walks.back() ? repeated_us : line % run == 0 ? in_runs_us : one_by_one_us;
  element_us *= multiprocessors / std::max(device.multiprocessors, 1);
  const double bytes_us = device.roofline_us(0, moved_bytes(call, results), std::nullopt);
  return std::max(bytes_us / of_copy, element_us * static_cast<double>(results[0].elements())) + device.launch_us;
}

constexpr CudaCandidate elementwise_table[] = {
#define PLIMSOLL_UNARY(op, Name, formula) {op_##op, "vectors", has_no_f8},
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) {op_##op, "vectors", has_no_f8},
#define PLIMSOLL_BINARY(function, Name, formula) \
  {.op = op_##function, .name = "broadcast", .accepts = ranks_fit_without_f8, .predicted_us = broadcast_us},
#include "kernels/elementwise.def"
    {op_bitwise_not, "vectors", has_no_f8},
    {op_gelu, "vectors", has_no_f8},
    {op_gelu_grad, "vectors", has_no_f8},
    {op_clip, "vectors", has_no_f8},
    {.op = op_cast,
     .name = "vectors",
     .accepts = has_no_f8,
     .predicted_us = cast_us,
     .shares_launches = is_between_16_bits_and_f32},
    {op_is_nan, "vectors", has_no_f8},
    {op_is_inf, "vectors", has_no_f8},
    {op_not, "vectors", has_no_f8},
    {op_dropout, "vectors", has_no_f8},
    {.op = op_fused, .name = "generated", .accepts = accepts_elements, .predicted_us = elements_us},
    {.op = op_fused,
     .name = "generated_sums",
     .accepts = accepts_reductions,
     .workspace_bytes = reductions_workspace,
     .predicted_us = reductions_us},
    {op_random_uniform, "vectors", has_no_f8},
    {op_random_normal, "vectors", has_no_f8},
    {op_mod, "broadcast", ranks_fit_without_f8},
    {op_bit_shift, "broadcast", ranks_fit_without_f8},
    {op_where, "broadcast", ranks_fit},
    {op_add_n, "vectors", accepts_add_n},
    {op_dequantize, "runs", accepts_everything},
    {op_dequantize_linear, "runs", accepts_everything},
    {op_f8_scale, "words", accepts_f8_scale, f8_scale_workspace},
    {op_to_f8, "tiles", accepts_to_f8},
    {.op = op_to_scaled_f8,
     .name = "rows",
     .accepts = accepts_rows_to_f8,
     .workspace_bytes = rows_to_f8_workspace,
     .predicted_us = rows_to_f8_us},
    {op_to_scaled_f8, "blocks", accepts_blocks_to_f8},
    {op_to_scaled_f8, "tiles", accepts_tiles_to_f8},
    {op_copy, "bytes", accepts_everything},
    {op_identity, "bytes", accepts_everything},
    {op_detach, "bytes", accepts_everything},
    {op_reshape, "bytes", accepts_everything},
    {op_to_host, "copy_engine", accepts_everything},
    {op_to_device, "copy_engine", accepts_everything},
};

}  // namespace

static CodeNumbers make_code_numbers(llvm::StringRef format) {
  if (format == "nf4" || format == "fp4" || format == "int4") {
    CodeNumbers numbers;
    const std::array<float, 16> values = code_book(format);
    std::copy(values.begin(), values.end(), numbers.values.begin());
    return numbers;
  }
  if (format == "u4" || format == "i4") {
    CodeNumbers numbers;
    for (int code = 0; code < 16; ++code)
      numbers.values[static_cast<size_t>(code)] = static_cast<float>(format == "i4" && code > 7 ? code - 16 : code);
    return numbers;
  }
  const llvm::StringRef type = format == "int8" ? "i8" : format == "fp8" ? "f8e4m3" : format;
  CodeNumbers numbers{.bits = 8, .factor = format == "int8" ? int8_step : 1};
  for (int code = 0; code < 256; ++code) {
    auto byte = static_cast<uint8_t>(code);
    numbers.values[static_cast<size_t>(code)] =
        static_cast<float>(TensorView{Type(*parse_dtype(type), {1}), &byte}.get(0));
  }
  return numbers;
}

const CodeNumbers& code_numbers(llvm::StringRef format) {
  static const std::map<std::string, CodeNumbers> numbers = [] {
    std::map<std::string, CodeNumbers> all;
    for (llvm::StringRef name : {"nf4", "fp4", "int4", "int8", "fp8"}) all[name.str()] = make_code_numbers(name);
    for (llvm::StringRef name : linear_formats) all[name.str()] = make_code_numbers(name);
    return all;
  }();
  return numbers.at(format.str());
}

llvm::ArrayRef<CudaCandidate> elementwise_candidates() { return elementwise_table; }

}  // namespace plimsoll
