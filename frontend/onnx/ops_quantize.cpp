#include "frontend/onnx/import_rows.h"

// Imports linear quantisation as arithmetic and casts. The rounding passes no gradient.

namespace plimsoll {
namespace {

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

void import_dequantize(NodeContext& n) {
  ValueId x = n.input(0), scale = n.input(1);
  int64_t axis = n.attr_int("axis", 1), block = n.attr_int("block_size", 0);
  DType wide = n.type(scale).dtype;
  ValueId steps = n.cast(x, wide);
  if (n.has(2)) steps = n.emit("sub", {steps, n.cast(spread(n, n.input(2), x, axis, block), wide)});
  n.output(0, n.emit("mul", {steps, spread(n, scale, x, axis, block)}));
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

constexpr ImportRow rows[] = {
    {"DequantizeLinear", 10, import_dequantize},
    {"DynamicQuantizeLinear", 11, import_dynamic_quantize},
    {"QuantizeLinear", 10, import_quantize},
};

}  // namespace

llvm::ArrayRef<ImportRow> quantize_rows() { return rows; }

}  // namespace plimsoll
