#include "frontend/onnx/import_rows.h"

#include "llvm/Support/MathExtras.h"

// Imports operators about shapes. The shapes are known at import, and moved tensors keep their elements.

namespace plimsoll {
namespace {

int64_t product(llvm::ArrayRef<int64_t> dims) { return element_count(dims); }

void import_shape(NodeContext& n) {
  ValueId x = n.input(0);
  int64_t rank = n.rank(x);
  auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  int64_t start = clamp(n.attr_int("start", 0)), end = clamp(n.attr_int("end", rank));
  Shape dims = n.dims_from(x, start);
  dims.resize(std::max<int64_t>(end - start, 0));
  n.output(0, n.constant_value(Tensor::of_ints(dims)));
}

void import_size(NodeContext& n) { n.output(0, n.constant_value(Tensor::scalar_int(n.type(n.input(0)).elements()))); }

void import_constant(NodeContext& n) {
  if (n.has_attr("value")) return n.output(0, n.constant_value(n.attr_tensor("value")));
  if (n.has_attr("value_int")) return n.output(0, n.constant_value(Tensor::scalar_int(n.attr_int("value_int", 0))));
  if (n.has_attr("value_ints")) return n.output(0, n.constant_value(Tensor::of_ints(n.attr_ints("value_ints"))));
  if (n.has_attr("value_float")) return n.output(0, n.scalar(n.attr_float("value_float", 0), DType::F32));
  if (!n.has_attr("value_floats")) return n.fail("a constant must be a dense tensor of numbers");
  Floats values = n.attr_floats("value_floats");
  n.output(0, n.constant_value(Tensor::of_floats(values, DType::F32, {static_cast<int64_t>(values.size())})));
}

void import_constant_of_shape(NodeContext& n) {
  Ints shape = n.known_ints(0, "shape");
  Tensor value = n.has_attr("value") ? n.attr_tensor("value") : Tensor::scalar(0, DType::F32);
  n.output(0, n.expand(n.constant_value(value.reshaped({})), shape));
}

constexpr double max_range = 1 << 28;

void import_range(NodeContext& n) {
  TensorRef start = n.constant(n.input(0)), limit = n.constant(n.input(1)), delta = n.constant(n.input(2));
  for (size_t i : {0, 1, 2}) n.known_floats(i, "range");
  if (n.failed()) return;
  if (delta->get(0) == 0) return n.fail("the step is 0");
  DType dtype = start->type().dtype;
  bool exact = !is_float(dtype);
  double span = exact ? static_cast<double>(limit->get_int(0) - start->get_int(0)) : limit->get(0) - start->get(0);
  double steps = std::max(0.0, std::ceil(span / delta->get(0)));
  if (!(steps <= max_range)) return n.fail("a range of " + std::to_string(steps) + " numbers is too long");
  auto count = static_cast<int64_t>(steps);
  Tensor values(Type(dtype, {count}));
  for (int64_t i = 0; i < count; ++i)
    if (exact)
      values.view().set_int(i, start->get_int(0) + i * delta->get_int(0));
    else
      values.view().set(i, start->get(0) + static_cast<double>(i) * delta->get(0));
  n.output(0, n.constant_value(std::move(values)));
}

constexpr int64_t max_eye = 1 << 26;

void import_eye_like(NodeContext& n) {
  const Type like = n.type(n.input(0));
  if (like.rank() != 2 || like.elements() > max_eye)
    return n.fail("needs a matrix of at most " + llvm::Twine(max_eye) + " elements, got " + to_string(like));
  Tensor eye(Type(n.attr_dtype("dtype", like.dtype), like.shape));
  int64_t k = std::clamp(n.attr_int("k", 0), -max_eye, max_eye);  // beyond the matrix it is empty all the same
  for (int64_t row = 0; row < like.shape[0]; ++row)
    if (row + k >= 0 && row + k < like.shape[1]) eye.view().set(row * like.shape[1] + row + k, 1);
  n.output(0, n.constant_value(std::move(eye)));
}

void import_reshape(NodeContext& n) {
  ValueId x = n.input(0);
  Ints target = n.known_ints(1, "shape");
  if (n.failed()) return;
  int64_t elements = n.type(x).elements(), inferred = -1, rest = 1;
  bool keep_zero = n.attr_int("allowzero", 0) != 0;
  for (int64_t i = 0; i < static_cast<int64_t>(target.size()); ++i) {
    int64_t& size = target[i];
    if (size == 0 && !keep_zero && i >= n.rank(x))
      return n.fail("copies dimension " + llvm::Twine(i) + ", which " + to_string(n.type(x)) + " lacks");
    if (size == 0 && !keep_zero) size = n.dim(x, i);
    if (size < -1) return n.fail("asks for a dimension of " + llvm::Twine(size));
    if (size == -1 && inferred >= 0) return n.fail("leaves two dimensions open: " + to_string(target));
    if (size == -1)
      inferred = i;
    else if (llvm::MulOverflow(rest, size, rest))
      return n.fail("cannot view " + to_string(n.type(x)) + " as " + to_string(target));
  }
  if (inferred >= 0) target[inferred] = rest > 0 ? elements / rest : 0;
  if (product(target) != elements) return n.fail("cannot view " + to_string(n.type(x)) + " as " + to_string(target));
  n.output(0, n.reshape(x, target));
}

void import_flatten(NodeContext& n) {
  ValueId x = n.input(0);
  int64_t axis = n.attr_int("axis", 1);
  if (axis < 0) axis += n.rank(x);
  if (axis < 0 || axis > n.rank(x)) return n.fail("axis " + llvm::Twine(axis) + " is outside " + to_string(n.type(x)));
  const Shape dims = n.shape(x), tail = n.dims_from(x, axis);
  n.output(0, n.reshape(x, {product(llvm::ArrayRef<int64_t>(dims).take_front(axis)), product(tail)}));
}

// Axes are an attribute before opset 13 and an input since.
Ints given_axes(NodeContext& n) {
  return n.has_attr("axes") || !n.has(1) ? n.attr_ints("axes") : n.known_ints(1, "axes");
}

void import_squeeze(NodeContext& n) {
  ValueId x = n.input(0);
  Ints axes = n.axes(given_axes(n), n.rank(x));
  bool all = !n.has_attr("axes") && !n.has(1);
  Shape kept;
  for (int64_t axis = 0; axis < n.rank(x); ++axis) {
    bool drop = all ? n.dim(x, axis) == 1 : llvm::is_contained(axes, axis);
    if (drop && n.dim(x, axis) != 1)
      return n.fail("cannot drop dimension " + llvm::Twine(axis) + " of " + to_string(n.type(x)));
    if (!drop) kept.push_back(n.dim(x, axis));
  }
  n.output(0, n.reshape(x, kept));
}

void import_unsqueeze(NodeContext& n) {
  ValueId x = n.input(0);
  Ints given = given_axes(n);
  int64_t rank = n.rank(x) + static_cast<int64_t>(given.size());
  Ints axes = n.axes(given, rank);
  Shape shape;
  for (int64_t axis = 0, next = 0; axis < rank && !n.failed(); ++axis)
    shape.push_back(llvm::is_contained(axes, axis) ? 1 : n.dim(x, next++));
  n.output(0, n.reshape(x, shape));
}

void import_transpose(NodeContext& n) {
  ValueId x = n.input(0);
  Ints perm = n.attr_ints("perm");
  if (!n.has_attr("perm"))
    for (int64_t axis = n.rank(x); axis-- > 0;) perm.push_back(axis);
  n.output(0, n.rank(x) == 0 && perm.empty() ? x : n.transpose(x, perm));
}

void import_expand(NodeContext& n) {
  ValueId x = n.input(0);
  Ints asked = n.known_ints(1, "shape");
  if (n.failed()) return;
  std::optional<Shape> shape = broadcast_shapes(n.shape(x), asked);
  if (!shape) return n.fail("cannot expand " + to_string(n.type(x)) + " to " + to_string(asked));
  n.output(0, n.expand(x, *shape));
}

void import_concat(NodeContext& n) {
  ValueList pieces = n.inputs();
  if (n.failed()) return;
  n.output(0, n.concat(pieces, n.axis(n.attr_int("axis", 0), n.rank(pieces.front()))));
}

void import_tile(NodeContext& n) {
  ValueId x = n.input(0);
  Ints repeats = n.known_ints(1, "repeats");
  bool nothing = llvm::all_of(repeats, [](int64_t r) { return r == 1; });
  n.output(0, nothing ? x : n.emit("tile", {x}, {{"repeats", repeats}}));
}

// Moves blocks of channels into squares of pixels: [N, C, H, W] becomes [N, C/b^2, H*b, W*b].
void import_depth_to_space(NodeContext& n) {
  ValueId x = n.input(0);
  int64_t block = n.attr_int("blocksize", 0);
  if (n.rank(x) != 4 || block < 1 || n.dim(x, 1) % (block * block) != 0)
    return n.fail("cannot cut " + to_string(n.type(x)) + " into blocks of " + llvm::Twine(block));
  const Shape s = n.shape(x);
  int64_t channels = s[1] / (block * block);
  bool column_first = n.attr_string("mode", "DCR") == "CRD";
  ValueId cut = column_first ? n.reshape(x, {s[0], channels, block, block, s[2], s[3]})
                             : n.reshape(x, {s[0], block, block, channels, s[2], s[3]});
  ValueId moved = column_first ? n.transpose(cut, {0, 1, 4, 2, 5, 3}) : n.transpose(cut, {0, 3, 4, 1, 5, 2});
  n.output(0, n.reshape(moved, {s[0], channels, s[2] * block, s[3] * block}));
}

void import_space_to_depth(NodeContext& n) {
  ValueId x = n.input(0);
  int64_t block = n.attr_int("blocksize", 0);
  if (n.rank(x) != 4 || block < 1 || n.dim(x, 2) % block != 0 || n.dim(x, 3) % block != 0)
    return n.fail("cannot cut " + to_string(n.type(x)) + " into blocks of " + llvm::Twine(block));
  const Shape s = n.shape(x);
  ValueId cut = n.reshape(x, {s[0], s[1], s[2] / block, block, s[3] / block, block});
  ValueId moved = n.transpose(cut, {0, 3, 5, 1, 2, 4});
  n.output(0, n.reshape(moved, {s[0], s[1] * block * block, s[2] / block, s[3] / block}));
}

constexpr ImportRow shape_table[] = {
    {"Concat", 4, import_concat},
    {"Constant", 1, import_constant},
    {"ConstantOfShape", 9, import_constant_of_shape},
    {"DepthToSpace", 1, import_depth_to_space},
    {"Expand", 8, import_expand},
    {"EyeLike", 9, import_eye_like},
    {"Flatten", 1, import_flatten},
    {"Range", 11, import_range},
    {"Reshape", 5, import_reshape},
    {"Shape", 1, import_shape},
    {"Size", 1, import_size},
    {"SpaceToDepth", 1, import_space_to_depth},
    {"Squeeze", 1, import_squeeze},
    {"Tile", 6, import_tile},
    {"Transpose", 1, import_transpose},
    {"Unsqueeze", 1, import_unsqueeze},
};

}  // namespace

llvm::ArrayRef<ImportRow> shape_rows() { return shape_table; }

}  // namespace plimsoll
