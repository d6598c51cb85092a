// Ops that take a tensor apart or put it together along axes: slice, split, concat.

#include "ir/ops/common/divide.h"
#include "ir/ops/common/expr.h"
#include "ir/ops/common/samples.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

using namespace samples;

// ---- slice and slice_grad ----

// Every index start + i * step, i < size, must lie within the dimension.
Status check_slice(const Attrs& attrs, llvm::ArrayRef<int64_t> whole, llvm::ArrayRef<int64_t> part) {
  auto rank = static_cast<int64_t>(whole.size());
  for (llvm::StringLiteral name : {llvm::StringLiteral("starts"), llvm::StringLiteral("steps")})
    if (Status s = need_length(attrs, name, rank)) return s;
  llvm::ArrayRef<int64_t> starts = attrs.get_ints("starts"), steps = attrs.get_ints("steps");
  for (size_t d = 0; d < whole.size(); ++d) {
    int64_t last = starts[d] + (part[d] - 1) * steps[d];
    if (part[d] < 0) return model_error("dimension " + llvm::Twine(d) + " has the size " + llvm::Twine(part[d]));
    if (part[d] > 0 && (starts[d] < 0 || starts[d] >= whole[d] || last < 0 || last >= whole[d]))
      return model_error("dimension " + llvm::Twine(d) + ": indices " + llvm::Twine(starts[d]) + " to " +
                         llvm::Twine(last) + " of a dimension of " + llvm::Twine(whole[d]));
  }
  return Status::success();
}

Result<Types> infer_slice(const OpCall& call) {
  const Type& x = call["x"];
  if (Status s = need_length(call.attrs, "sizes", x.rank())) return s;
  if (Status s = check_slice(call.attrs, x.shape, call.get_ints("sizes"))) return s;
  return one_result(x.dtype, call.get_ints("sizes"));
}

Result<Types> infer_slice_grad(const OpCall& call) {
  const Type& dy = call["dy"];
  if (Status s = need_length(call.attrs, "shape", dy.rank())) return s;
  if (Status s = check_slice(call.attrs, call.get_ints("shape"), dy.shape)) return s;
  return one_result(dy.dtype, call.get_ints("shape"));
}

// The elements of `whole` that the attributes pick.
Window picked(const Attrs& attrs, const TensorView& whole) {
  Window window = dense(whole);
  for (size_t d = 0; d < window.strides.size(); ++d) {
    window.base += attrs.get_ints("starts")[d] * window.strides[d];
    window.strides[d] *= attrs.get_ints("steps")[d];
  }
  return window;
}

void slice_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  copy_window(y.type.shape, dense(y), picked(call.attrs, x));
}

void slice_grad_reference(const ReferenceCall& call) {
  const TensorView &dy = call.in("dy"), &dx = call.out("dx");
  fill_zero(dx);
  copy_window(dy.type.shape, picked(call.attrs, dx), dense(dy));
}

// A slice of consecutive elements takes all of each dimension behind the first that it takes several of.
llvm::SmallVector<int64_t, 4> slice_runs(const OpCall& call) {
  const Shape& whole = call["x"].shape;
  const llvm::ArrayRef<int64_t> sizes = call.get_ints("sizes"), starts = call.get_ints("starts");
  const Shape strides = row_major_strides(whole);
  bool takes_several = false;
  int64_t begin = 0;
  for (size_t d = 0; d < whole.size(); ++d) {
    if (takes_several && sizes[d] != whole[d]) return {};
    if (sizes[d] > 1 && call.get_ints("steps")[d] != 1) return {};
    takes_several |= sizes[d] != 1;
    begin += starts[d] * strides[d];
  }
  return {begin};
}

// The attributes of either op with the third one, `other`, in place of sizes or shape.
Attrs slice_attrs_with(const Attrs& attrs, llvm::StringRef other, llvm::ArrayRef<int64_t> list) {
  Attrs out{{"starts", *attrs.find("starts")}, {"steps", *attrs.find("steps")}};
  out.set(other, Ints(list.begin(), list.end()));
  return out;
}

void slice_gradient(GradContext& g) {
  const Shape shape = g.type(g["x"]).shape;
  g.add("x", apply("slice_grad", out_grad(g), slice_attrs_with(g.attrs(), "shape", shape)));
}

void slice_grad_gradient(GradContext& g) {
  const Shape sizes = g.type(g["dy"]).shape;
  g.add("dy", apply("slice", out_grad(g), slice_attrs_with(g.attrs(), "sizes", sizes)));
}

// A changed dimension must have been taken whole, forwards or backwards. `list` names the attribute that
// holds the size on the other side.
Result<Attrs> whole_for_batch(const OpCall& before, llvm::ArrayRef<const Type*> after, llvm::StringRef list) {
  auto copied = [&](llvm::StringRef name) {
    return Ints(before.attrs.get_ints(name).begin(), before.attrs.get_ints(name).end());
  };
  const Shape &from = before.operand(0).shape, &now = after[0]->shape;
  Ints starts = copied("starts"), sizes = copied(list);
  for (size_t d = 0; d < from.size(); ++d) {
    if (now[d] == from[d]) continue;
    int64_t step = before.attrs.get_ints("steps")[d];
    bool forwards = starts[d] == 0 && (step == 1 || from[d] == 1);
    bool backwards = starts[d] == from[d] - 1 && step == -1;
    if (sizes[d] != from[d] || !(forwards || backwards))
      return model_error("takes a part of dimension " + llvm::Twine(d) + ", which changes from " +
                         llvm::Twine(from[d]) + " to " + llvm::Twine(now[d]) + " with the batch");
    sizes[d] = now[d];
    if (!forwards) starts[d] = now[d] - 1;
  }
  Attrs attrs = before.attrs;
  attrs.set("starts", starts);
  attrs.set(list, sizes);
  return attrs;
}

Result<Attrs> slice_for_batch(const OpCall& before, llvm::ArrayRef<const Type*> after) {
  return whole_for_batch(before, after, "sizes");
}

Result<Attrs> slice_grad_for_batch(const OpCall& before, llvm::ArrayRef<const Type*> after) {
  return whole_for_batch(before, after, "shape");
}

// Dimensions of which it reads everything.
std::optional<DividedCall> slice_divide(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known,
                                        int64_t ranks) {
  std::string letters = pass_through(results[0].rank());
  for (size_t d = 0; d < letters.size(); ++d)
    if (call["x"].shape[d] != results[0].shape[d] || call.get_ints("steps")[d] != 1) letters[d] = '.';
  std::optional<DividedCall> made = divide_letters(call, {{letters}, {letters}}, known);
  if (!made) return std::nullopt;
  set_part(made->attrs, "sizes", known.cut, ranks);
  made->may_be_uneven = true;
  return made;
}

std::optional<ChunkCall> slice_chunk(const OpCall& call, Chunk chunk) {
  const Shape& shape = call["x"].shape;
  const Attrs& attrs = call.attrs;
  if (shape.empty() || attrs.get_ints("starts")[0] != 0 || attrs.get_ints("steps")[0] != 1 ||
      attrs.get_ints("sizes")[0] != shape[0])
    return std::nullopt;
  return with_chunk_of_shape(cut_operands(call, {"x"}), "sizes", chunk);
}

std::optional<ChunkCall> slice_grad_chunk(const OpCall& call, Chunk chunk) {
  const llvm::ArrayRef<int64_t> dy = call["dy"].shape, shape = call.get_ints("shape");
  if (dy.empty() || call.get_ints("starts")[0] != 0 || call.get_ints("steps")[0] != 1 || dy[0] != shape[0])
    return std::nullopt;
  return with_chunk_of_shape(cut_operands(call, {"dy"}), "shape", chunk);
}

Sample slice_sample(SampleOperand x, Ints starts, Ints steps, Ints sizes) {
  return {{std::move(x)}, {{"starts", starts}, {"steps", steps}, {"sizes", sizes}}};
}

std::vector<Sample> slice_samples() {
  return {slice_sample(normal({5, 4}), {1, 0}, {1, 1}, {3, 4}), slice_sample(normal({4, 5}), {0, 1}, {1, 2}, {4, 2}),
          slice_sample(normal({5, 2, 4}), {4, 1, 0}, {-2, 1, 3}, {3, 1, 2}),
          slice_sample(integers({6}, -9, 9), {5}, {-1}, {6}), slice_sample(normal({3}), {0}, {1}, {0})};
}

std::vector<Sample> slice_grad_samples() {
  return {{{normal({3, 2})}, {{"starts", Ints{4, 1}}, {"steps", Ints{-2, 1}}, {"shape", Ints{5, 4}}}},
          {{normal({2})}, {{"starts", Ints{1}}, {"steps", Ints{2}}, {"shape", Ints{5}}}},
          {{normal({4, 2})}, {{"starts", Ints{0, 1}}, {"steps", Ints{1, 2}}, {"shape", Ints{4, 5}}}}};
}

// ---- split ----

Result<Types> infer_split(const OpCall& call) {
  const Type& x = call["x"];
  if (Status s = need_axis(call.attrs, "axis", x.rank())) return s;
  auto axis = static_cast<size_t>(call.get_int("axis"));
  Types parts;
  int64_t sum = 0;
  for (int64_t size : call.get_ints("sizes")) {
    if (size < 0) return model_error("sizes has the negative entry " + llvm::Twine(size));
    sum += size;
    parts.push_back(x);
    parts.back().shape[axis] = size;
  }
  if (sum != x.shape[axis])
    return model_error("sizes add up to " + llvm::Twine(sum) + ", dimension " + llvm::Twine(axis) + " is " +
                       llvm::Twine(x.shape[axis]));
  return parts;
}

// Moves between `whole` and its parts along the axis; `move(whole_at, part, part_at, count)`.
template <typename Move>
void for_each_run(llvm::ArrayRef<int64_t> whole, int64_t axis, llvm::ArrayRef<TensorView> parts, Move move) {
  AxisView view = along_axis(whole, axis);
  int64_t start = 0;
  for (const TensorView& part : parts) {
    int64_t run = part.type.shape[static_cast<size_t>(axis)] * view.inner;
    for (int64_t o = 0; o < view.outer; ++o) move(view.at(o, start, 0), part, o * run, run);
    start += part.type.shape[static_cast<size_t>(axis)];
  }
}

void split_reference(const ReferenceCall& call) {
  const TensorView& x = call.in("x");
  for_each_run(x.type.shape, call.get_int("axis"), call.results,
               [&](int64_t at, const TensorView& part, int64_t part_at, int64_t count) {
                 copy_elements(part, part_at, x, at, count);
               });
}

// Parts along an axis, one after the other, are runs where nothing but ones stands ahead of it.
llvm::SmallVector<int64_t, 4> runs_along(int64_t axis, llvm::ArrayRef<int64_t> sizes, llvm::ArrayRef<int64_t> shape) {
  const AxisView view = along_axis(shape, axis);
  llvm::SmallVector<int64_t, 4> begins;
  if (view.outer != 1) return begins;
  int64_t begin = 0;
  for (int64_t size : sizes) {
    begins.push_back(begin);
    begin += size * view.inner;
  }
  return begins;
}

llvm::SmallVector<int64_t, 4> split_runs(const OpCall& call) {
  return runs_along(call.get_int("axis"), call.get_ints("sizes"), call["x"].shape);
}

void split_gradient(GradContext& g) {
  llvm::SmallVector<ValueId, 4> parts;
  for (size_t i = 0; i < g.attrs().get_ints("sizes").size(); ++i) parts.push_back(g.out_grad_or_zero(i));
  g.add("x", g.b.emit("concat", parts, {{"axis", g.attrs().get_int("axis")}}));
}

// Of a split or a concatenation along {axis}: `whole` is cut, and its parts are. Each part is a block of the axis.
struct PartsCut {
  Cut whole;
  llvm::SmallVector<std::optional<Cut>, 4> parts;
};
std::optional<PartsCut> cut_parts(int64_t axis, llvm::ArrayRef<int64_t> sizes, const Cut& known, bool is_whole,
                                  size_t part, int64_t ranks) {
  PartsCut made{known, llvm::SmallVector<std::optional<Cut>, 4>(sizes.size(), known)};
  if (known.dim != axis) return made;
  made.whole = {axis, Shape(sizes.begin(), sizes.end())};
  if (known.blocks != (is_whole ? made.whole.blocks : Shape{sizes[part]})) return std::nullopt;
  const bool by_sizes = known.parts.empty() && divides_evenly(known, ranks);
  for (size_t i = 0; i < sizes.size() && !by_sizes; ++i) {
    // Of the same share of each block.
    const int64_t known_part = part_of_block(known, is_whole ? i : 0, ranks);
    if (!is_whole && known_part * sizes[i] % sizes[part] != 0) return std::nullopt;
    made.whole.parts.push_back(is_whole ? known_part : known_part * sizes[i] / sizes[part]);
  }
  for (size_t i = 0; i < sizes.size(); ++i)
    made.parts[i] = by_sizes ? Cut{axis, {sizes[i]}} : cut_in_parts(axis, {sizes[i]}, {made.whole.parts[i]}, ranks);
  if (!by_sizes) made.whole = cut_in_parts(axis, made.whole.blocks, made.whole.parts, ranks);
  return made;
}

std::optional<DividedCall> split_divide(const OpCall& call, llvm::ArrayRef<Type>, const CutAt& known, int64_t ranks) {
  const llvm::ArrayRef<int64_t> sizes = call.get_ints("sizes");
  const std::optional<PartsCut> cut =
      cut_parts(call.get_int("axis"), sizes, known.cut, known.side == CutAt::Side::Operand, known.index, ranks);
  if (!cut) return std::nullopt;
  DividedCall made{{cut->whole}, {cut->parts.begin(), cut->parts.end()}, call.attrs};
  made.may_be_uneven = true;
  if (known.cut.dim == call.get_int("axis")) {
    Ints own;
    for (const std::optional<Cut>& each : made.results) own.push_back(part_size(*each, ranks));
    made.attrs.set("sizes", own);
  }
  return made;
}

std::optional<DividedCall> concat_divide(const OpCall& call, llvm::ArrayRef<Type>, const CutAt& known, int64_t ranks) {
  const int64_t axis = call.get_int("axis");
  Shape sizes;
  for (size_t i = 0; i < call.count(); ++i) sizes.push_back(call.operand(i).shape[static_cast<size_t>(axis)]);
  const std::optional<PartsCut> cut =
      cut_parts(axis, sizes, known.cut, known.side == CutAt::Side::Result, known.index, ranks);
  if (!cut) return std::nullopt;
  DividedCall made{{cut->parts.begin(), cut->parts.end()}, {cut->whole}, call.attrs};
  made.may_be_uneven = true;
  return made;
}

std::vector<Sample> split_samples() {
  return {{{normal({2, 5})}, {{"axis", 1}, {"sizes", Ints{2, 3}}}},
          {{normal({4, 2, 2})}, {{"axis", 0}, {"sizes", Ints{1, 2, 1}}}},
          {{integers({3}, -9, 9)}, {{"axis", 0}, {"sizes", Ints{3}}}}};
}

// ---- concat ----

Result<Types> infer_concat(const OpCall& call) {
  Type whole = call["xs"];
  if (Status s = need_axis(call.attrs, "axis", whole.rank())) return s;
  auto axis = static_cast<size_t>(call.get_int("axis"));
  for (size_t i = 1; i < call.count(); ++i) {
    Type part = call.operand(i);
    int64_t size = part.rank() == whole.rank() ? part.shape[axis] : 0;
    if (part.rank() == whole.rank()) part.shape[axis] = whole.shape[axis];
    if (part != whole)
      return model_error("operand " + llvm::Twine(i) + " is " + to_string(call.operand(i)) + ", it must agree with " +
                         to_string(call["xs"]) + " but for axis " + llvm::Twine(axis));
    whole.shape[axis] += size;
  }
  return Types{whole};
}

void concat_reference(const ReferenceCall& call) {
  const TensorView& y = call.out("y");
  for_each_run(y.type.shape, call.get_int("axis"), call.operands,
               [&](int64_t at, const TensorView& part, int64_t part_at, int64_t count) {
                 copy_elements(y, at, part, part_at, count);
               });
}

llvm::SmallVector<int64_t, 4> concat_runs(const OpCall& call) {
  Ints sizes;
  for (size_t i = 0; i < call.count(); ++i)
    sizes.push_back(call.operand(i).shape[static_cast<size_t>(call.get_int("axis"))]);
  return runs_along(call.get_int("axis"), sizes, call["xs"].shape);
}

// One split where every part is wanted, or all but one part in eight, such as the first state of a recurrence among the
// others; else a slice for each that is.
void concat_gradient(GradContext& g) {
  int64_t axis = g.attrs().get_int("axis");
  auto size_of = [&](size_t i) { return g.type(g[i]).shape[static_cast<size_t>(axis)]; };
  int64_t whole = 0, unwanted = 0;
  Ints sizes;
  for (size_t i = 0; i < g.operand_count(); ++i) {
    sizes.push_back(size_of(i));
    whole += size_of(i);
    if (!g.wants(i)) unwanted += size_of(i);
  }
  if (unwanted * 8 <= whole) {
    auto parts = g.b.emit_all("split", {g.out_grad()}, {{"axis", axis}, {"sizes", sizes}});
    for (size_t i = 0; i < parts.size(); ++i)
      if (g.wants(i)) g.add(i, parts[i]);
    return;
  }
  Ints starts(g.type(g["xs"]).shape.size(), 0), steps(starts.size(), 1);
  for (size_t i = 0; i < g.operand_count(); ++i) {
    const Shape part = g.type(g[i]).shape;
    if (g.wants(i))
      g.add(i, apply("slice", out_grad(g),
                     {{"starts", starts}, {"steps", steps}, {"sizes", Ints(part.begin(), part.end())}}));
    starts[static_cast<size_t>(axis)] += size_of(i);
  }
}

std::optional<ChunkCall> concat_chunk(const OpCall& call, Chunk) {
  if (call.get_int("axis") == 0) return std::nullopt;
  return ChunkCall{llvm::SmallVector<bool, 4>(call.count(), true), {}, call.attrs};
}

std::vector<Sample> concat_samples() {
  return {{{normal({2, 3}), normal({2, 1}), normal({2, 2})}, {{"axis", 1}}},
          {{normal({1, 2, 2}), fixed(normal({3, 2, 2}))}, {{"axis", 0}}},
          {{fixed(normal({1, 2})), normal({4, 2}), normal({3, 2})}, {{"axis", 0}}},
          {{integers({2}, -9, 9), integers({1}, -9, 9)}, {{"axis", 0}}}};
}

}  // namespace

constinit const OpDef op_slice{
    .name = "slice",
    .summary = "along each dimension d the {sizes}[d] elements {starts}[d], starts[d] + {steps}[d], ...",
    .attrs = {{"starts", AttrKind::Ints}, {"steps", AttrKind::Ints}, {"sizes", AttrKind::Ints}},
    .infer = infer_slice,
    .gradient = Gradient::rule(slice_gradient),
    .moves_elements = true,
    .dim_order = DimOrder::Lists,
    .result_runs = slice_runs,
    .flops = no_flops,
    .attrs_for_batch = slice_for_batch,
    .chunk = slice_chunk,
    .divide = slice_divide,
    .linear = {"x"},
    .reference = slice_reference,
    .samples = slice_samples,
};

constinit const OpDef op_slice_grad{
    .name = "slice_grad",
    .summary = "zeros of {shape} with dy at the places that slice {starts} {steps} reads",
    .operands = {"dy"},
    .results = {"dx"},
    .attrs = {{"starts", AttrKind::Ints}, {"steps", AttrKind::Ints}, {"shape", AttrKind::Ints}},
    .infer = infer_slice_grad,
    .gradient = Gradient::rule(slice_grad_gradient),
    .flops = no_flops,
    .attrs_for_batch = slice_grad_for_batch,
    .chunk = slice_grad_chunk,
    .linear = {"dy"},
    .reference = slice_grad_reference,
    .samples = slice_grad_samples,
};

constinit const OpDef op_split{
    .name = "split",
    .summary = "x cut along {axis} into consecutive parts of {sizes}, one result each",
    .results = {"parts+"},
    .attrs = {{"axis", AttrKind::Int}, {"sizes", AttrKind::Ints}},
    .infer = infer_split,
    .gradient = Gradient::rule(split_gradient),
    .moves_elements = true,
    .dim_order = DimOrder::Axis,
    .result_runs = split_runs,
    .flops = no_flops,
    .chunk = chunk_across_axis,
    .divide = split_divide,
    .linear = {"x", "x"},
    .reference = split_reference,
    .samples = split_samples,
};

constinit const OpDef op_concat{
    .name = "concat",
    .summary = "the operands one after the other along {axis}",
    .operands = {"xs+"},
    .attrs = {{"axis", AttrKind::Int}},
    .infer = infer_concat,
    .gradient = Gradient::rule(concat_gradient),
    .dim_order = DimOrder::Axis,
    .operand_runs = concat_runs,
    .flops = no_flops,
    .chunk = concat_chunk,
    .divide = concat_divide,
    .linear = {"xs"},
    .reference = concat_reference,
    .samples = concat_samples,
};

}  // namespace plimsoll
