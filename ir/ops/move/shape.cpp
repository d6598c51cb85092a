// Ops that give elements another place or shape as a whole: constant, reshape, transpose, expand, tile,
// concat, split.

#include "ir/ops/common/divide.h"
#include "ir/ops/common/expr.h"
#include "ir/ops/common/samples.h"
#include "ir/support/align.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {
namespace {

using namespace samples;

Status need_dims(const Attrs& attrs, llvm::StringRef name) {
  for (int64_t dim : attrs.get_ints(name))
    if (dim < 0) return model_error(name + " has the negative entry " + llvm::Twine(dim));
  return Status::success();
}

// ---- constant ----

Result<Types> infer_constant(const OpCall& call) { return Types{call.attrs.get_tensor("value")->type()}; }

void constant_reference(const ReferenceCall& call) {
  const TensorView& y = call.out("y");
  copy_elements(y, 0, call.attrs.get_tensor("value")->view(), 0, y.elements());
}

std::vector<Sample> constant_samples() {
  auto sample = [](Tensor tensor) {
    return Sample{{}, {{"value", std::make_shared<const Tensor>(std::move(tensor))}}};
  };
  return {sample(Tensor::of_floats({1, 2.5, -3}, DType::F32, {3, 1})), sample(Tensor::scalar_int(7))};
}

// ---- reshape ----

Result<Types> infer_reshape(const OpCall& call) {
  if (Status s = need_dims(call.attrs, "shape")) return s;
  const Type& x = call["x"];
  Type y(x.dtype, call.get_ints("shape"));
  if (x.elements() != y.elements())
    return model_error(to_string(x) + " has " + llvm::Twine(x.elements()) + " elements, shape " + to_string(y.shape) +
                       " has " + llvm::Twine(y.elements()));
  return Types{y};
}

void move_all(const ReferenceCall& call) { copy_elements(call.out("y"), 0, call.in("x"), 0, call.out("y").elements()); }

void reshape_gradient(GradContext& g) {
  const Shape shape = g.type(g["x"]).shape;
  g.add("x", g.b.reshape(g.out_grad(), shape));
}

// Dimensions [from, to) of a shape.
struct DimRange {
  size_t from, to;
  bool has(size_t d) const { return from <= d && d < to; }
};

// Two shapes of equal size fall into shortest groups of equal product: [2,3,4] and [6,2,2] into [2,3]|[4]
// and [6]|[2,2]. Trailing ones belong to the last group.
std::vector<std::pair<DimRange, DimRange>> reshape_groups(llvm::ArrayRef<int64_t> from, llvm::ArrayRef<int64_t> to) {
  std::vector<std::pair<DimRange, DimRange>> groups;
  size_t i = 0, j = 0;
  while (i < from.size() && j < to.size()) {
    DimRange left{i, i + 1}, right{j, j + 1};
    int64_t left_product = from[i++], right_product = to[j++];
    while (left_product != right_product)
      if (left_product < right_product)
        left_product *= from[i++];
      else
        right_product *= to[j++];
    left.to = i;
    right.to = j;
    groups.emplace_back(left, right);
  }
  if (!groups.empty()) {
    groups.back().first.to = from.size();
    groups.back().second.to = to.size();
  }
  return groups;
}

// The first dimension of the range that is not 1, else the first.
size_t leading_dim(llvm::ArrayRef<int64_t> shape, DimRange range) {
  for (size_t d = range.from; d < range.to; ++d)
    if (shape[d] != 1) return d;
  return range.from;
}

// A dimension that grew must lead its group, and then the leading dimension of the group's result grows with
// it; anywhere else the batch would not stay together.
Result<Attrs> reshape_for_batch(const OpCall& before, llvm::ArrayRef<const Type*> after) {
  const Shape &from = before.operand(0).shape, &now = after[0]->shape;
  Ints shape(before.attrs.get_ints("shape").begin(), before.attrs.get_ints("shape").end());
  const Ints old_shape = shape;
  if (element_count(from) == 0) return model_error("a reshape of an empty tensor cannot follow another batch");
  for (auto [left, right] : reshape_groups(from, old_shape))
    for (size_t d = left.from; d < left.to; ++d) {
      if (now[d] == from[d]) continue;
      size_t target = leading_dim(old_shape, right);
      bool leads = d == leading_dim(from, left) || from[d] == 1;
      if (!leads || shape[target] * now[d] % from[d] != 0)
        return model_error("reshape from " + to_string(from) + " to " + to_string(old_shape) +
                           " cannot follow dimension " + llvm::Twine(d) + " from " + llvm::Twine(from[d]) + " to " +
                           llvm::Twine(now[d]) + ": the batch does not lead its group of dimensions");
      shape[target] = shape[target] * now[d] / from[d];
    }
  Attrs attrs = before.attrs;
  attrs.set("shape", shape);
  return attrs;
}

// Equal runs of elements stay equal runs, whatever the shapes.
std::optional<ChunkCall> reshape_chunk(const OpCall& call, Chunk chunk) {
  return with_chunk_of_shape(cut_operands(call, {"x"}), "shape", chunk);
}

struct ReshapedCuts {
  Cut from, to;
};
// Parts that are not even: as many elements of each block before and after, so `from` has whole runs of `to`.
std::optional<ReshapedCuts> uneven_reshaped(const Cut& cut, int64_t run_before, size_t dim, int64_t size,
                                            int64_t blocks, int64_t run_behind, int64_t ranks) {
  const int64_t unit = run_behind / std::gcd(run_before, run_behind);
  const int64_t part = align_up(part_of_block(cut, 0, ranks), unit);
  const Shape parts(cut.blocks.size(), part), parts_behind(static_cast<size_t>(blocks), part * run_before / run_behind);
  return ReshapedCuts{
      cut_in_parts(cut.dim, cut.blocks, parts, ranks),
      cut_in_parts(static_cast<int64_t>(dim), Shape(static_cast<size_t>(blocks), size / blocks), parts_behind, ranks)};
}

// Equal blocks of a dimension lie as far apart in memory whatever the shape is; the dimension of the other shape that
// begins blocks at the same distance is cut. None where there is no such dimension.
std::optional<ReshapedCuts> cut_of_reshaped(llvm::ArrayRef<int64_t> from, const Cut& cut, llvm::ArrayRef<int64_t> to,
                                            int64_t ranks) {
  const auto dim = static_cast<size_t>(cut.dim);
  for (auto [left, right] : reshape_groups(from, to)) {
    if (!left.has(dim)) continue;
    if (left.to - left.from == 1 && right.to - right.from == 1)
      return ReshapedCuts{cut, {static_cast<int64_t>(right.from), cut.blocks, cut.parts}};
    if (llvm::any_of(cut.blocks, [&](int64_t block) { return block != cut.blocks[0]; })) return std::nullopt;
    const int64_t wanted =
        element_count(from.slice(left.from, dim - left.from)) * static_cast<int64_t>(cut.blocks.size());
    for (bool evenly : {true, false}) {
      int64_t before = 1;
      for (size_t d = right.from; d < right.to && before <= wanted; before *= to[d++]) {
        const int64_t blocks = wanted / before;
        if (wanted % before != 0 || to[d] % blocks != 0 || to[d] == blocks) continue;
        if (evenly && divides_evenly(cut, ranks) && to[d] % (blocks * ranks) == 0)
          return ReshapedCuts{cut, {static_cast<int64_t>(d), Shape(static_cast<size_t>(blocks), to[d] / blocks)}};
        if (!evenly)
          return uneven_reshaped(cut, element_count(from.slice(dim + 1, left.to - dim - 1)), d, to[d], blocks,
                                 element_count(to.slice(d + 1, right.to - d - 1)), ranks);
      }
    }
  }
  return std::nullopt;
}

std::optional<DividedCall> reshape_divide(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known,
                                          int64_t ranks) {
  const Shape &x = call["x"].shape, &y = results[0].shape;
  if (call["x"].elements() == 0) return std::nullopt;
  const bool forward = known.side == CutAt::Side::Operand;
  const std::optional<ReshapedCuts> cuts = cut_of_reshaped(forward ? x : y, known.cut, forward ? y : x, ranks);
  if (!cuts) return std::nullopt;
  DividedCall made{{forward ? cuts->from : cuts->to}, {forward ? cuts->to : cuts->from}, call.attrs};
  set_part(made.attrs, "shape", *made.results[0], ranks);
  made.may_be_uneven = true;
  return made;
}

std::vector<Sample> reshape_samples() {
  return {{{normal({2, 3, 4})}, {{"shape", Ints{6, 4}}}},
          {{normal({1})}, {{"shape", Ints{}}}},
          {{integers({4, 2}, -9, 9)}, {{"shape", Ints{1, 8, 1}}}}};
}

// ---- transpose ----

Result<Types> infer_transpose(const OpCall& call) {
  const Type& x = call["x"];
  if (Status s = need_length(call.attrs, "perm", x.rank())) return s;
  Shape shape;
  llvm::ArrayRef<int64_t> perm = call.get_ints("perm");
  for (size_t d = 0; d < perm.size(); ++d) {
    if (perm[d] < 0 || perm[d] >= x.rank() || contains(perm.take_front(d), perm[d]))
      return model_error("perm " + to_string(perm) + " is no permutation");
    shape.push_back(x.shape[static_cast<size_t>(perm[d])]);
  }
  return one_result(x.dtype, shape);
}

void transpose_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  Shape own = row_major_strides(x.type.shape), strides;
  for (int64_t d : call.get_ints("perm")) strides.push_back(own[static_cast<size_t>(d)]);
  copy_window(y.type.shape, dense(y), {x, strides});
}

void transpose_gradient(GradContext& g) {
  llvm::ArrayRef<int64_t> perm = g.attrs().get_ints("perm");
  Ints inverse(perm.size());
  for (size_t d = 0; d < perm.size(); ++d) inverse[static_cast<size_t>(perm[d])] = static_cast<int64_t>(d);
  g.add("x", g.b.transpose(g.out_grad(), inverse));
}

std::optional<ChunkCall> transpose_chunk(const OpCall& call, Chunk chunk) {
  llvm::ArrayRef<int64_t> perm = call.get_ints("perm");
  return perm.empty() || perm[0] != 0 ? std::nullopt : chunk_of_first(call, chunk);
}

std::optional<DividedCall> transpose_divide(const OpCall& call, llvm::ArrayRef<Type>, const CutAt& known, int64_t) {
  const std::string letters = pass_through(call["x"].rank());
  std::string permuted;
  for (int64_t d : call.get_ints("perm")) permuted += letters[static_cast<size_t>(d)];
  std::optional<DividedCall> made = divide_letters(call, {{letters}, {permuted}}, known);
  if (made) made->may_be_uneven = true;
  return made;
}

std::vector<Sample> transpose_samples() {
  return {{{normal({2, 3})}, {{"perm", Ints{1, 0}}}},
          {{normal({2, 3, 4, 2})}, {{"perm", Ints{2, 0, 3, 1}}}},
          {{integers({2, 3}, -9, 9, DType::I16)}, {{"perm", Ints{1, 0}}}},
          {{fixed(normal({2, 20, 70}))}, {{"perm", Ints{0, 2, 1}}}},
          {{fixed(normal({2, 3, 48}))}, {{"perm", Ints{0, 2, 1}}}},
          {{fixed(normal({2, 48, 4}))}, {{"perm", Ints{0, 2, 1}}}},
          {{integers({2, 2, 48}, -9, 9, DType::I8)}, {{"perm", Ints{0, 2, 1}}}},
          {{fixed(normal({2, 5, 3, 8}))}, {{"perm", Ints{0, 2, 1, 3}}}}};
}

// ---- expand ----

Result<Types> infer_expand(const OpCall& call) {
  if (Status s = need_dims(call.attrs, "shape")) return s;
  const Type& x = call["x"];
  llvm::ArrayRef<int64_t> shape = call.get_ints("shape");
  std::optional<Shape> both = broadcast_shapes(x.shape, shape);
  if (!both || llvm::ArrayRef<int64_t>(*both) != shape)
    return model_error(to_string(x) + " does not broadcast to " + to_string(shape));
  return one_result(x.dtype, shape);
}

void expand_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  const Shape& shape = y.type.shape;
  copy_window(shape, dense(y), {x, broadcast_strides(x.type.shape, shape)});
}

void expand_gradient(GradContext& g) { add_broadcast(g, "x", g.out_grad()); }

Result<Attrs> expand_for_batch(const OpCall& before, llvm::ArrayRef<const Type*> after) {
  const Shape &from = before.operand(0).shape, &now = after[0]->shape;
  Ints shape(before.attrs.get_ints("shape").begin(), before.attrs.get_ints("shape").end());
  size_t shift = shape.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d) {
    if (now[d] == from[d]) continue;
    if (shape[shift + d] != from[d])
      return model_error("expand to " + to_string(shape) + " cannot follow dimension " + llvm::Twine(d) + " from " +
                         llvm::Twine(from[d]) + " to " + llvm::Twine(now[d]));
    shape[shift + d] = now[d];
  }
  Attrs attrs = before.attrs;
  attrs.set("shape", shape);
  return attrs;
}

std::optional<ChunkCall> expand_chunk(const OpCall& call, Chunk chunk) {
  const Shape& from = call["x"].shape;
  llvm::ArrayRef<int64_t> to = call.get_ints("shape");
  if (from.empty() || from.size() != to.size() || from[0] != to[0]) return std::nullopt;
  return with_chunk_of_shape(cut_operands(call, {"x"}), "shape", chunk);
}

std::optional<DividedCall> expand_divide(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known,
                                         int64_t ranks) {
  const Shape &from = call["x"].shape, &to = results[0].shape;
  const std::string letters = pass_through(results[0].rank());
  std::string of_x;
  for (size_t d = 0; d < from.size(); ++d) {
    const size_t of_result = d + to.size() - from.size();
    of_x += from[d] == to[of_result] ? letters[of_result] : '.';
  }
  std::optional<DividedCall> made = divide_letters(call, {{of_x}, {letters}}, known);
  if (!made) return std::nullopt;
  set_part(made->attrs, "shape", *made->results[0], ranks);
  made->may_be_uneven = made->operands[0].has_value();
  return made;
}

std::vector<Sample> expand_samples() {
  return {{{normal({3, 1})}, {{"shape", Ints{2, 3, 4}}}},
          {{normal({})}, {{"shape", Ints{5}}}},
          {{normal({4, 1, 2})}, {{"shape", Ints{4, 3, 2}}}},
          {{bools({1, 2})}, {{"shape", Ints{3, 2}}}}};
}

// ---- tile ----

Result<Types> infer_tile(const OpCall& call) {
  if (Status s = need_dims(call.attrs, "repeats")) return s;
  Type y = call["x"];
  if (Status s = need_length(call.attrs, "repeats", y.rank())) return s;
  for (size_t d = 0; d < y.shape.size(); ++d) y.shape[d] *= call.get_ints("repeats")[d];
  return Types{y};
}

// Each dimension d of the result as the pair (repeats[d], x's d).
Shape paired_shape(llvm::ArrayRef<int64_t> repeats, llvm::ArrayRef<int64_t> shape) {
  Shape pairs;
  for (size_t d = 0; d < shape.size(); ++d) pairs.append({repeats[d], shape[d]});
  return pairs;
}

void tile_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  Shape pairs = paired_shape(call.get_ints("repeats"), x.type.shape), strides;
  for (int64_t stride : row_major_strides(x.type.shape)) strides.append({0, stride});
  copy_window(pairs, {y, row_major_strides(pairs)}, {x, strides});
}

void tile_gradient(GradContext& g) {
  const Shape shape = g.type(g["x"]).shape;
  Ints axes;
  for (size_t d = 0; d < shape.size(); ++d) axes.push_back(static_cast<int64_t>(2 * d));
  g.add("x", g.b.sum(g.b.reshape(g.out_grad(), paired_shape(g.attrs().get_ints("repeats"), shape)), axes, false));
}

std::vector<Sample> tile_samples() {
  return {{{normal({2, 3})}, {{"repeats", Ints{3, 2}}}},
          {{normal({4})}, {{"repeats", Ints{1}}}},
          {{integers({1, 2, 2}, -9, 9)}, {{"repeats", Ints{2, 1, 3}}}}};
}

}  // namespace

constinit const OpDef op_constant{
    .name = "constant",
    .summary = "the tensor {value}",
    .operands = {},
    .attrs = {{"value", AttrKind::Tensor}},
    .infer = infer_constant,
    .gradient = Gradient::zero(),
    .flops = no_flops,
    .reference = constant_reference,
    .samples = constant_samples,
};

constinit const OpDef op_reshape{
    .name = "reshape",
    .summary = "x's elements in row-major order with another {shape}",
    .attrs = {{"shape", AttrKind::Ints}},
    .infer = infer_reshape,
    .gradient = Gradient::rule(reshape_gradient),
    .view_of = "x",
    .flops = no_flops,
    .attrs_for_batch = reshape_for_batch,
    .chunk = reshape_chunk,
    .divide = reshape_divide,
    .linear = {"x"},
    .reference = move_all,
    .samples = reshape_samples,
};

constinit const OpDef op_transpose{
    .name = "transpose",
    .summary = "dimension d of the result is dimension {perm}[d] of x",
    .attrs = {{"perm", AttrKind::Ints}},
    .infer = infer_transpose,
    .gradient = Gradient::rule(transpose_gradient),
    .moves_elements = true,
    .flops = no_flops,
    .chunk = transpose_chunk,
    .divide = transpose_divide,
    .linear = {"x"},
    .reference = transpose_reference,
    .samples = transpose_samples,
};

constinit const OpDef op_expand{
    .name = "expand",
    .summary = "x broadcast to exactly {shape}",
    .attrs = {{"shape", AttrKind::Ints}},
    .infer = infer_expand,
    .gradient = Gradient::rule(expand_gradient),
    .moves_elements = true,
    .dim_order = DimOrder::Lists,
    .flops = no_flops,
    .attrs_for_batch = expand_for_batch,
    .chunk = expand_chunk,
    .divide = expand_divide,
    .linear = {"x"},
    .reference = expand_reference,
    .samples = expand_samples,
};

constinit const OpDef op_tile{
    .name = "tile",
    .summary = "x repeated {repeats}[d] times along each dimension d",
    .attrs = {{"repeats", AttrKind::Ints}},
    .infer = infer_tile,
    .gradient = Gradient::rule(tile_gradient),
    .moves_elements = true,
    .dim_order = DimOrder::Lists,
    .flops = no_flops,
    .linear = {"x"},
    .reference = tile_reference,
    .samples = tile_samples,
};

}  // namespace plimsoll
