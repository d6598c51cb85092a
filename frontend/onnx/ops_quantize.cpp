#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/importer.h"
#include "ir/quantized_numbers.h"

// Imports linear quantisation as arithmetic and casts; the rounding passes no gradient. Matrices that the file has as
// codes stay codes, and an op makes floats of them where they are read.

namespace plimsoll {
namespace {

constexpr int64_t max_size = int64_t{1} << 31;  // of a dimension or block, so that products of two do not overflow

struct Range {
  double low, high;
};

Range range_of(DType dtype) {
  int bits = static_cast<int>(8 * dtype_bytes(dtype));
  bool is_signed = is_signed_integer(dtype);
  double high = std::ldexp(1.0, is_signed ? bits - 1 : bits) - 1;
  return {is_signed ? -high - 1 : 0, high};
}

// Expands a scale or zero point so that it broadcasts against x. It has one element, one per slice along `axis`, or one
// per block of `block` elements.
ValueId spread(NodeContext& n, ValueId parameter, ValueId x, int64_t axis, int64_t block) {
  if (n.failed() || n.type(parameter).elements() == 1) return n.reshape(parameter, {});
  axis = n.axis(axis, n.rank(x));
  if (n.failed()) return parameter;
  if (n.rank(parameter) == 1) {
    Shape shape(n.rank(x), 1);
    shape[axis] = n.dim(parameter, 0);
    return n.reshape(parameter, shape);
  }
  Shape split = n.shape(parameter), blocks = split;
  split.insert(split.begin() + axis + 1, 1);
  blocks.insert(blocks.begin() + axis + 1, block);
  return n.slice(n.reshape(n.expand(n.reshape(parameter, split), blocks),
                           [&] {
                             Shape full = n.shape(parameter);
                             full[axis] *= block;
                             return full;
                           }()),
                 axis, 0, n.dim(x, axis));
}

void import_quantize(NodeContext& n) {
  ValueId x = n.input(0), scale = n.input(1);
  DType quantised = n.has(2) ? n.type(n.input(2)).dtype : n.attr_dtype("output_dtype", DType::U8);
  if (!is_integer(quantised)) return n.fail("quantises to " + dtype_name(quantised) + ", which is not supported");
  int64_t axis = n.attr_int("axis", 1), block = n.attr_int("block_size", 0);
  DType wide = n.type(scale).dtype;
  ValueId steps = n.emit("round", {n.emit("div", {n.cast(x, wide), spread(n, scale, x, axis, block)})});
  if (n.has(2)) steps = n.emit("add", {steps, n.cast(spread(n, n.input(2), x, axis, block), wide)});
  Range range = range_of(quantised);
  n.output(0, n.cast(n.emit("clip", {steps}, {{"min", range.low}, {"max", range.high}}), quantised));
}

// Codes as a matrix, and how many rows and columns of it share a scale.
struct Grid {
  int64_t rows = 0, columns = 0, block_rows = 1, block = 1;
};

// Codes of `shape` with scales along one axis, or in blocks of `block` along it. None where the axis lies between
// others, so that no matrix has its scales in rows and columns.
std::optional<Grid> grid_of(llvm::ArrayRef<int64_t> shape, int64_t axis, int64_t block, int64_t scales) {
  const int64_t outer = element_count(shape.take_front(static_cast<size_t>(axis))),
                inner = element_count(shape.drop_front(static_cast<size_t>(axis) + 1)),
                size = shape[static_cast<size_t>(axis)];
  if (scales == 1) return Grid{1, outer * size * inner, 1, outer * size * inner};
  if (block == 0 && outer == 1) return Grid{size, inner, 1, inner};
  if (block == 0 && inner == 1) return Grid{outer, size, outer, 1};
  if (block > 0 && inner == 1) return Grid{outer, size, 1, block};
  if (block > 0 && (outer == 1 || size % block == 0)) return Grid{outer * size, inner, block, 1};
  return std::nullopt;
}

llvm::StringRef format_of(const Weight& codes) {
  if (codes.four_bits) return codes.four_bits->is_signed ? "i4" : "u4";
  return dtype_name(codes.type.dtype);
}

// The weight as floats, out of the codes that the file has; None where that cannot be said by rows and columns.
ValueId dequantized(NodeContext& n, const Weight& codes) {
  const Shape& shape = codes.four_bits ? codes.four_bits->shape : codes.type.shape;
  if (shape.empty()) return ValueId::None;
  const ValueId scale = n.input(1);
  const int64_t axis = n.axis(n.attr_int("axis", 1), static_cast<int64_t>(shape.size()));
  if (n.failed()) return ValueId::None;
  const std::optional<Grid> grid = grid_of(shape, axis, n.attr_int("block_size", 0), n.type(scale).elements());
  const DType dtype = n.attr_dtype("output_dtype", n.type(scale).dtype);
  if (!grid || (dtype != DType::F32 && dtype != DType::F16 && dtype != DType::BF16)) return ValueId::None;
  const ValueId matrix = n.emit("dequantize_linear", {n.codes(0), scale, n.has(2) ? n.codes(2) : ValueId::None},
                                {{"format", format_of(codes).str()},
                                 {"shape", Ints{grid->rows, grid->columns}},
                                 {"block_rows", grid->block_rows},
                                 {"block", grid->block},
                                 {"dtype", dtype}});
  return n.reshape(matrix, shape);
}

void import_dequantize(NodeContext& n) {
  const ValueId codes = n.codes(0);
  const Weight* weight = n.importer().weight_behind(codes);
  if (weight && n.importer().graph().find_state(codes)->role == StateRole::Parameter &&
      (weight->four_bits || llvm::is_contained(linear_formats, dtype_name(weight->type.dtype)))) {
    const ValueId matrix = dequantized(n, *weight);
    if (matrix != ValueId::None || n.failed()) return n.output(0, matrix);
  }
  ValueId x = n.input(0), scale = n.input(1);
  int64_t axis = n.attr_int("axis", 1), block = n.attr_int("block_size", 0);
  DType wide = n.type(scale).dtype;
  ValueId steps = n.cast(x, wide);
  if (n.has(2)) steps = n.emit("sub", {steps, n.cast(spread(n, n.input(2), x, axis, block), wide)});
  n.output(0, n.emit("mul", {steps, spread(n, scale, x, axis, block)}));
}

// The attribute, which must be at least 1.
int64_t size_attr(NodeContext& n, llvm::StringRef name) {
  const int64_t size = n.attr_int(name, 0);
  if (size < 1 || size > max_size)
    n.fail(name + " is " + llvm::Twine(size) + ", it must be from 1 to " + llvm::Twine(max_size));
  return n.failed() ? 1 : size;
}

// A [.., K] times the transpose of B, whose rows are cut into blocks along K. Each block fills whole bytes, so a row
// may have more codes than K.
void import_matmul_nbits(NodeContext& n) {
  const ValueId a = n.input(0), codes = n.input(1), scales = n.input(2), bias = n.optional_input(5);
  const int64_t bits = n.attr_int("bits", 4), inputs = size_attr(n, "K"), outputs = size_attr(n, "N"),
                block = size_attr(n, "block_size");
  if (bits != 4 && bits != 8) n.fail("has codes of " + llvm::Twine(bits) + " bits, only 4 and 8 are supported");
  if (n.has(4)) n.fail("has g_idx, which puts inputs into blocks in another order; quantise without act-order");
  if (n.attr_int("weight_prepacked", 0) != 0) n.fail("has a weight that is packed for one kind of GPU");
  if (n.has(3) && n.type(n.input(3)).dtype != DType::U8)
    n.fail("has zero points in " + dtype_name(n.type(n.input(3)).dtype) + ", only packed ones in u8 are supported");
  if (n.failed()) return;
  const int64_t blocks = (inputs + block - 1) / block;
  const ValueId zeros = n.has(3) ? n.reshape(n.input(3), {outputs, (blocks * bits + 7) / 8}) : ValueId::None;
  const ValueId padded = n.emit("dequantize_linear", {codes, scales, zeros},
                                {{"format", std::string(bits == 4 ? "u4" : "u8")},
                                 {"shape", Ints{outputs, blocks * block}},
                                 {"block", block},
                                 {"dtype", n.type(a).dtype},
                                 {"zero", int64_t{1} << (bits - 1)}});
  const ValueId weight = n.slice(padded, 1, 0, inputs);
  n.output(0, n.emit("linear", {a, weight, bias}, {{"transpose_w", 1}}));
}

// A times the transpose of B, or B itself, [N, K] in bitsandbytes' 4-bit codes.
void import_matmul_bnb4(NodeContext& n) {
  const ValueId a = n.input(0), codes = n.input(1), scales = n.input(2);
  const int64_t kind = n.attr_int("quant_type", -1);
  if (kind != 0 && kind != 1) n.fail("quant_type is " + llvm::Twine(kind) + ", it must be 0 (FP4) or 1 (NF4)");
  const int64_t inputs = size_attr(n, "K"), outputs = size_attr(n, "N"), block = size_attr(n, "block_size");
  if (n.failed()) return;
  const ValueId weight = n.emit("dequantize", {codes, scales},
                                {{"format", std::string(kind == 0 ? "fp4" : "nf4")},
                                 {"block", block},
                                 {"shape", Ints{outputs, inputs}},
                                 {"dtype", n.type(a).dtype},
                                 {"given", 1}});
  n.output(0, n.emit("linear", {a, weight}, {{"transpose_w", n.attr_int("transB", 1) != 0 ? 1 : 0}}));
}

// Quantises to unsigned bytes over the range of the data, extended to include 0.
void import_dynamic_quantize(NodeContext& n) {
  ValueId x = n.input(0);
  DType dtype = n.type(x).dtype;
  const Ints all = n.all_axes(x);
  ValueId zero = n.scalar(0, dtype);
  ValueId low = n.emit("min", {n.reduce("reduce_min", x, all, false), zero});
  ValueId high = n.emit("max", {n.reduce("reduce_max", x, all, false), zero});
  ValueId scale = n.emit("div", {n.emit("sub", {high, low}), n.scalar(255, dtype)});
  Attrs bytes{{"min", 0.0}, {"max", 255.0}};
  ValueId offset = n.emit("round", {n.emit("clip", {n.emit("div", {n.emit("neg", {low}), scale})}, bytes)});
  ValueId steps = n.emit("add", {n.emit("round", {n.emit("div", {x, scale})}), offset});
  n.output(0, n.cast(n.emit("clip", {steps}, bytes), DType::U8));
  n.output(1, scale);
  n.output(2, n.cast(offset, DType::U8));
}

constexpr ImportRow quantize_table[] = {
    {"com.microsoft:DequantizeLinear", 1, import_dequantize}, {"com.microsoft:MatMulBnb4", 1, import_matmul_bnb4},
    {"com.microsoft:MatMulNBits", 1, import_matmul_nbits},    {"DequantizeLinear", 10, import_dequantize},
    {"DynamicQuantizeLinear", 11, import_dynamic_quantize},   {"QuantizeLinear", 10, import_quantize},
};

}  // namespace

llvm::ArrayRef<ImportRow> quantize_rows() { return quantize_table; }

}  // namespace plimsoll
