#include "ir/ops/common/samples.h"
#include "ir/ops/common/support.h"
#include "ir/quantized_numbers.h"

// dequantize_linear: a weight that the model's file has as integers with scales and zero points, as ONNX's
// DequantizeLinear and MatMulNBits mean them. What `dequantize` reads is made by quantising here.

namespace plimsoll {
namespace {

Result<Types> infer_dequantize_linear(const OpCall& call) {
  if (Status s = need_choice(call.attrs, "format", linear_formats)) return s;
  const llvm::ArrayRef<int64_t> shape = call.get_ints("shape");
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1)
    return model_error("shape is " + to_string(shape) + ", codes lie in rows and columns");
  const int64_t block_rows = call.get_int("block_rows"), block = call.get_int("block");
  if (block_rows < 1 || block < 1)
    return model_error("a block is " + llvm::Twine(block_rows) + " rows of " + llvm::Twine(block) +
                       ", both must be above 0");
  const LinearGrid grid = linear_grid(shape, block_rows, block);
  const llvm::StringRef format = call.get_string("format");
  const int bits = linear_code_bits(format);
  const DType codes = linear_code_dtype(format);
  const int64_t stride = zeros_per_row(format, grid, call.has("zeros") ? &call["zeros"] : nullptr);
  const auto stored = [&](int64_t count) { return bits == 4 ? (count + 1) / 2 : count; };
  if (Status s = need_elements(call, "codes", codes, stored(shape[0] * shape[1]))) return s;
  const DType scale = call["scales"].dtype, dtype = call.attrs.get_dtype("dtype");
  for (DType each : {scale, dtype})
    if (each != DType::F32 && each != DType::BF16 && each != DType::F16)
      return model_error("scales are " + dtype_name(scale) + " and dtype is " + dtype_name(dtype) +
                         ", both must be f32, bf16 or f16");
  if (Status s = need_elements(call, "scales", scale, grid.rows * grid.columns)) return s;
  if (Status s = need_elements(call, "zeros", codes, stored(grid.rows * stride))) return s;
  return one_result(dtype, shape);
}

// Two codes in a byte, the first in its low half.
double code_at(llvm::StringRef format, const TensorView& codes, int64_t i) {
  if (linear_code_bits(format) == 8) return codes.get(i);
  const int64_t code = codes.get_int(i / 2) >> (i % 2 * 4) & 15;
  return static_cast<double>(format == "i4" && code > 7 ? code - 16 : code);
}

void dequantize_linear_reference(const ReferenceCall& call) {
  const TensorView codes = call.in("codes"), scales = call.in("scales"), zeros = call.in("zeros"), &y = call.out("y");
  const llvm::StringRef format = call.get_string("format");
  const int64_t block_rows = call.get_int("block_rows"), block = call.get_int("block"), columns = y.type.shape[1];
  const LinearGrid grid = linear_grid(y.type.shape, block_rows, block);
  const int64_t stride = zeros_per_row(format, grid, call.has("zeros") ? &zeros.type : nullptr);
  for (int64_t i = 0; i < y.elements(); ++i) {
    const int64_t row = i / columns / block_rows, column = i % columns / block;
    const double zero =
        call.has("zeros") ? code_at(format, zeros, row * stride + column) : static_cast<double>(call.get_int("zero"));
    const double steps = code_at(format, codes, i) - zero;
    y.set(i, static_cast<float>(steps) * static_cast<float>(scales.get(row * grid.columns + column)));
  }
}

std::vector<Sample> dequantize_linear_samples() {
  using namespace samples;
  const auto bytes = [](Dims shape) { return integers(shape, 0, 255, DType::U8); };
  const auto scales = [](Dims shape, DType dtype = DType::F32) { return fixed(positive(shape, dtype)); };
  const auto attrs = [](llvm::StringRef format, Ints shape, int64_t block_rows, int64_t block, DType dtype) {
    return Attrs{{"format", format.str()},
                 {"shape", std::move(shape)},
                 {"block_rows", block_rows},
                 {"block", block},
                 {"dtype", dtype}};
  };
  Attrs eight = attrs("u4", {6, 64}, 1, 32, DType::F32);
  eight.set("zero", 8);
  return {
      {{bytes({192}), scales({6, 2})}, eight},
      {{bytes({6, 3, 8}), scales({6, 3}), bytes({6, 2})}, attrs("u4", {6, 48}, 1, 16, DType::BF16)},
      {{bytes({23}), scales({5, 3}, DType::F16), bytes({8})}, attrs("i4", {5, 9}, 1, 4, DType::F16)},
      {{bytes({240}), scales({3, 12})}, attrs("i4", {40, 12}, 16, 1, DType::F32)},
      {{integers({40, 12}, -128, 127, DType::I8), scales({12}), integers({12}, -9, 9, DType::I8)},
       attrs("i8", {40, 12}, 40, 1, DType::F32)},
      {{bytes({320}), scales({5, 16}, DType::F16), bytes({40})}, attrs("i4", {40, 16}, 8, 1, DType::F32)},
      {{integers({16, 24}, -128, 127, DType::I8), scales({24}, DType::BF16)},
       attrs("i8", {16, 24}, 16, 1, DType::BF16)},
      {{integers({3, 40}, -128, 127, DType::I8), scales({1})}, attrs("i8", {3, 40}, 3, 40, DType::BF16)},
      {{bytes({4, 2, 16}), scales({4, 2}, DType::BF16), bytes({4, 2})}, attrs("u8", {4, 32}, 1, 16, DType::BF16)},
      {{fixed(normal({3, 40}, DType::F8E4M3)), scales({3})}, attrs("f8e4m3", {3, 40}, 1, 40, DType::F32)},
      {{fixed(normal({3, 8}, DType::F8E5M2)), scales({1})}, attrs("f8e5m2", {3, 8}, 3, 8, DType::F32)},
  };
}

}  // namespace

constinit const OpDef op_dequantize_linear{
    .name = "dequantize_linear",
    .summary =
        "(code - zero point) * scale, a matrix of {shape} and {dtype} out of codes that a model's file has: "
        "{block_rows} "
        "rows of {block} numbers share a scale and a zero point, which is {zero} for all without zeros. {format}: i8, "
        "u8, f8e4m3, f8e5m2, or i4 and u4, two in a byte, the first in its low half",
    .operands = {"codes", "scales", "zeros?"},
    .attrs = {{"format", AttrKind::String},
              {"block_rows", 1},
              {"block", AttrKind::Int},
              {"shape", AttrKind::Ints},
              {"dtype", AttrKind::DType},
              {"zero", 0}},
    .infer = infer_dequantize_linear,
    .gradient = Gradient::missing("a quantised weight is frozen"),
    .reference = dequantize_linear_reference,
    .samples = dequantize_linear_samples,
};

}  // namespace plimsoll
