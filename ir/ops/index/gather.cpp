// Ops that pick elements by index: gather, gather_elements, their gradients, gather_nd, one_hot. A negative index
// counts from the end; one outside the dimension is an error of the data.

#include "ir/ops/index/indexing.h"

#include "ir/ops/common/divide.h"
#include "ir/ops/common/expr.h"
#include "ir/ops/common/samples.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

using namespace samples;

// ---- gather and gather_grad ----

Result<Types> infer_gather(const OpCall& call) {
  if (Status s = need_index(call, "indices")) return s;
  const Type& x = call["x"];
  if (Status s = need_axis(call.attrs, "axis", x.rank())) return s;
  auto axis = static_cast<size_t>(call.get_int("axis"));
  Shape shape(x.shape.begin(), x.shape.begin() + axis);
  llvm::append_range(shape, call["indices"].shape);
  shape.append(x.shape.begin() + axis + 1, x.shape.end());
  return one_result(x.dtype, shape);
}

// `visit(whole_at, picked_at, count)` for every run of consecutive elements that one index picks.
template <typename Visit>
Status for_each_gathered(llvm::ArrayRef<int64_t> whole, int64_t axis, const TensorView& indices, Visit visit) {
  AxisView view = along_axis(whole, axis);
  int64_t picks = indices.elements();
  for (int64_t p = 0; p < picks; ++p) {
    Result<int64_t> k = checked_index(indices.get_int(p), view.length);
    if (!k) return k.takeError();
    for (int64_t o = 0; o < view.outer; ++o) visit(view.at(o, *k, 0), (o * picks + p) * view.inner, view.inner);
  }
  return Status::success();
}

Status gather_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &indices = call.in("indices"), &y = call.out("y");
  return for_each_gathered(x.type.shape, call.get_int("axis"), indices,
                           [&](int64_t from, int64_t to, int64_t count) { copy_elements(y, to, x, from, count); });
}

void gather_gradient(GradContext& g) {
  int64_t axis = g.attrs().get_int("axis");
  int64_t size = g.type(g["x"]).shape[axis];
  g.add("x", apply("gather_grad", operand(g, "indices"), out_grad(g), {{"axis", axis}, {"size", size}}));
}

// Along axis 0 the indices' rows make the result's.
std::optional<ChunkCall> gather_chunk(const OpCall& call, Chunk) {
  if (call.get_int("axis") > 0) return cut_operands(call, {"x"});
  return call["indices"].rank() == 0 ? std::nullopt : std::optional<ChunkCall>(cut_operands(call, {"indices"}));
}

// Each rank looks up what its rows have, and zeros for the rest.
llvm::SmallVector<ValueId, 4> gather_own_rows(Builder& b, const Node& node, const DividedCall& call, int64_t ranks) {
  const ValueId x = node.operands[0], indices = node.operands[1];
  const auto axis = static_cast<size_t>(call.operands[0]->dim);
  const int64_t whole = call.operands[0]->blocks[0], part = b.type(x).shape[axis];
  const Type index_type = b.type(indices);
  const auto number = [&](int64_t value) { return b.constant(Tensor::scalar_int(value, index_type.dtype)); };
  // A negative index counts from the end of the whole.
  const ValueId counted =
      b.emit("where", {b.emit("less", {indices, number(0)}), b.emit("add", {indices, number(whole)}), indices});
  const ValueId own = b.emit("sub", {counted, first_of_part(b, part, ranks, index_type.dtype)});
  const ValueId is_here =
      b.emit("and", {b.emit("greater_equal", {own, number(0)}), b.emit("less", {own, number(part)})});
  const ValueId rows = b.emit("gather", {x, b.emit("where", {is_here, own, number(0)})}, call.attrs);
  Shape mask(b.type(rows).shape.size(), 1);
  llvm::copy(index_type.shape, mask.begin() + axis);
  return {b.emit("where", {b.reshape(is_here, mask), rows, b.scalar(0, b.type(rows).dtype)})};
}

std::optional<DividedCall> gather_divide(const OpCall& call, llvm::ArrayRef<Type>, const CutAt& known, int64_t) {
  const int64_t axis = call.get_int("axis");
  if (known.side == CutAt::Side::Operand && known.index == 0 && known.cut.dim == axis) {
    if (known.cut.blocks.size() > 1 || !is_float(call["x"].dtype)) return std::nullopt;
    DividedCall made{{known.cut, std::nullopt}, {std::nullopt}, call.attrs, true};
    made.may_be_uneven = true;
    made.make = gather_own_rows;
    return made;
  }
  const std::string all = pass_through(call["x"].rank() + call["indices"].rank());
  std::string x = all.substr(0, static_cast<size_t>(call["x"].rank())), picked = all.substr(x.size());
  const auto at = static_cast<size_t>(axis);
  const std::string y = x.substr(0, at) + picked + x.substr(at + 1);
  x[at] = '.';
  std::optional<DividedCall> made = divide_letters(call, {{x, picked}, {y}}, known);
  if (made) made->may_be_uneven = made->operands[0].has_value();
  return made;
}

std::vector<Sample> gather_samples() {
  return {{{normal({4, 3}), integers({2, 2}, -4, 3)}, {{"axis", 0}}},
          {{normal({2, 5, 2}), integers({3}, 0, 4, DType::I32)}, {{"axis", 1}}},
          {{normal({2, 3}), integers({}, 0, 2)}, {{"axis", 1}}},
          {{integers({6}, -9, 9), integers({4}, 0, 5)}, {{"axis", 0}}}};
}

Result<Types> infer_gather_grad(const OpCall& call) {
  if (Status s = need_index(call, "indices")) return s;
  if (Status s = need_float(call, "dy")) return s;
  const Type &indices = call["indices"], &dy = call["dy"];
  int64_t axis = call.get_int("axis");
  if (Status s = need_axis(call.attrs, "axis", dy.rank() - indices.rank() + 1)) return s;
  llvm::ArrayRef<int64_t> shape = dy.shape, picked = shape.slice(axis, indices.shape.size());
  if (picked != llvm::ArrayRef<int64_t>(indices.shape))
    return model_error("dy is " + to_string(dy) + ", at axis " + llvm::Twine(axis) +
                       " it must have the indices' shape " + to_string(indices.shape));
  Shape whole(shape.begin(), shape.begin() + axis);
  whole.push_back(call.get_int("size"));
  llvm::append_range(whole, shape.drop_front(axis + indices.shape.size()));
  Result<DType> dtype = sum_dtype(call, 1);
  if (!dtype) return dtype.takeError();
  if (Status s = need_type(call, "addend", Type(*dtype, whole))) return s;
  return one_result(*dtype, whole);
}

Status gather_grad_reference(const ReferenceCall& call) {
  const TensorView &indices = call.in("indices"), &dy = call.in("dy"), &addend = call.in("addend"),
                   &dx = call.out("dx");
  std::vector<double> sums(static_cast<size_t>(dx.elements()), 0.0);
  if (call.has("addend"))
    for (int64_t i = 0; i < dx.elements(); ++i) sums[i] = addend.get(i);
  Status status =
      for_each_gathered(dx.type.shape, call.get_int("axis"), indices, [&](int64_t to, int64_t from, int64_t count) {
        for (int64_t i = 0; i < count; ++i) sums[to + i] += dy.get(from + i);
      });
  if (status) return status;
  for (int64_t i = 0; i < dx.elements(); ++i) dx.set(i, sums[i]);
  return Status::success();
}

void gather_grad_gradient(GradContext& g) {
  if (g.wants("dy")) {
    const ValueId rows = g.b.emit("gather", {g.out_grad(), g["indices"]}, {{"axis", g.attrs().get_int("axis")}});
    g.add("dy", g.b.cast(rows, g.type(g["dy"]).dtype));
  }
  if (g.wants("addend")) g.add("addend", out_grad(g));
}

double one_add_each(const OpCall& call, llvm::ArrayRef<Type>) { return static_cast<double>(call["dy"].elements()); }

// An addend would be in every chunk's summand.
std::optional<ChunkCall> gather_grad_chunk(const OpCall& call, Chunk) {
  if (call.get_int("axis") > 0) return cut_operands(call, {"dy", "addend"});
  if (call["indices"].rank() == 0 || call.has("addend")) return std::nullopt;
  ChunkCall made = cut_operands(call, {"indices", "dy"});
  made.combine = {Combine::Sum};
  return made;
}

std::vector<Sample> gather_grad_samples() {
  return {{{integers({2, 3}, 0, 3), normal({2, 3, 2})}, {{"axis", 0}, {"size", 4}}},
          {{integers({3}, -4, 3, DType::I32), normal({2, 3})}, {{"axis", 1}, {"size", 4}}},
          {{integers({}, 0, 1), normal({2})}, {{"axis", 1}, {"size", 2}}},
          // A table of which blocks have several rows each, the last one fewer.
          {{integers({700}, -301, 300), fixed(normal({700, 5}))}, {{"axis", 0}, {"size", 301}}},
          // Rows that are picked very often.
          {{integers({400}, 0, 1), fixed(normal({400, 8}))}, {{"axis", 0}, {"size", 3}}},
          {{integers({2, 3}, 0, 3), normal({2, 3, 2}), normal({4, 2})}, {{"axis", 0}, {"size", 4}}},
          {{integers({400}, 0, 1), fixed(normal({400, 8})), fixed(normal({3, 8}))}, {{"axis", 0}, {"size", 3}}},
          {{integers({2, 3}, 0, 3), normal({2, 3, 6}, DType::BF16), normal({4, 6})},
           {{"axis", 0}, {"size", 4}, {"dtype", DType::F32}}},
          {{integers({400}, 0, 1), fixed(normal({400, 8}, DType::F16))},
           {{"axis", 0}, {"size", 3}, {"dtype", DType::F32}}}};
}

// ---- gather_elements and gather_elements_grad ----

Result<Types> infer_gather_elements(const OpCall& call) {
  if (Status s = check_shared_indices(call, call["x"])) return s;
  return one_result(call["x"].dtype, indexed_shape(call["x"], call["indices"]));
}

Status gather_elements_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &indices = call.in("indices"), &y = call.out("y");
  return for_each_element_index(x.type.shape, call.get_int("axis"), indices,
                                [&](int64_t i, int64_t at) { copy_elements(y, i, x, at); });
}

// Of a part of x the elements that no index can name get zeros, as those do that none names.
void gather_elements_gradient(GradContext& g) {
  const Type whole = g.type(g["x"]);
  const int64_t axis = g.attrs().get_int("axis");
  Shape picked = g.type(g.out_grad()).shape;
  const Type updates(whole.dtype, picked);
  picked[axis] = whole.shape[axis];
  if (picked == whole.shape) {
    const Attrs attrs{{"axis", axis}, {"size", whole.shape[axis]}};
    g.add("x", apply("gather_elements_grad", operand(g, "indices"), out_grad(g), attrs));
    return;
  }
  const ValueId indices = g.b.expand(g["indices"], updates.shape);
  const Attrs attrs{{"axis", axis}, {"reduction", "add"}};
  g.add("x", g.b.emit("scatter_elements", {zeros(g.b, whole), indices, g.out_grad()}, attrs));
}

// The samples' rows of the operand that is indexed, or of its gradient, and of the indices where these have rows.
std::optional<ChunkCall> chunk_along(const OpCall& call, PortKey indexed) {
  const Type &x = call[indexed], &indices = call["indices"];
  if (indices.rank() < x.rank()) return cut_operands(call, {indexed});
  const bool same_rows = call.get_int("axis") != 0 && x.shape[0] == indices.shape[0];
  return same_rows ? std::optional<ChunkCall>(cut_operands(call, {indexed, "indices"})) : std::nullopt;
}

std::optional<ChunkCall> gather_elements_chunk(const OpCall& call, Chunk) { return chunk_along(call, "x"); }

// Letters of indices, of what they pick, and of the whole along whose axis they point.
struct LettersAlongAxis {
  std::string indices, picked, whole;

  LettersAlongAxis(llvm::ArrayRef<int64_t> picked_shape, llvm::ArrayRef<int64_t> whole_shape, size_t axis, size_t rank)
      : picked(pass_through(static_cast<int64_t>(picked_shape.size()))) {
    for (size_t d = 0; d < picked.size(); ++d)
      if (d != axis && picked_shape[d] != whole_shape[d]) picked[d] = '.';
    whole = picked;
    whole[axis] = '.';
    indices = picked.substr(picked.size() - rank);
  }
};

std::optional<DividedCall> gather_elements_divide(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known,
                                                  int64_t) {
  const LettersAlongAxis letters(results[0].shape, call["x"].shape, static_cast<size_t>(call.get_int("axis")),
                                 call["indices"].shape.size());
  return divide_letters(call, {{letters.whole, letters.indices}, {letters.picked}}, known);
}

std::vector<Sample> gather_elements_samples() {
  return {{{normal({3, 4}), integers({2, 4}, -3, 2)}, {{"axis", 0}}},
          {{normal({3, 4}), integers({3, 2}, 0, 3, DType::I32)}, {{"axis", 1}}},
          {{normal({3, 2, 21}), integers({3, 2, 24}, -21, 20)}, {{"axis", 2}}},
          // Shared indices, of whole and of odd vectors, and of a part of x.
          {{normal({3, 2, 9}), integers({2, 16}, 0, 8)}, {{"axis", 2}}},
          {{normal({2, 3, 9}), integers({7}, -9, 8, DType::I32)}, {{"axis", 2}}},
          {{normal({2, 4, 3}), integers({5, 2}, 0, 3)}, {{"axis", 1}}},
          {{integers({5}, -9, 9), integers({3}, 0, 4)}, {{"axis", 0}}}};
}

Result<Types> infer_gather_elements_grad(const OpCall& call) {
  if (Status s = need_float(call, "dy")) return s;
  const Type& dy = call["dy"];
  if (Status s = need_axis(call.attrs, "axis", dy.rank())) return s;
  Type whole = dy;
  whole.shape[call.get_int("axis")] = call.get_int("size");
  if (Status s = check_shared_indices(call, whole)) return s;
  if (indexed_shape(whole, call["indices"]) != dy.shape)
    return model_error("dy is " + to_string(dy) + ", its last dimensions must be the indices' shape " +
                       to_string(call["indices"].shape));
  if (Status s = need_type(call, "addend", whole)) return s;
  return one_result(whole.dtype, whole.shape);
}

Status gather_elements_grad_reference(const ReferenceCall& call) {
  const TensorView& dx = call.out("dx");
  std::vector<double> sums(static_cast<size_t>(dx.elements()), 0.0);
  if (call.has("addend")) sums = call.load("addend");
  const std::vector<double> dy = call.load("dy");
  if (Status s = for_each_element_index(dx.type.shape, call.get_int("axis"), call.in("indices"),
                                        [&](int64_t i, int64_t at) { sums[at] += dy[i]; }))
    return s;
  call.store(sums, "dx");
  return Status::success();
}

void gather_elements_grad_gradient(GradContext& g) {
  if (g.wants("dy"))
    g.add("dy", apply("gather_elements", out_grad(g), operand(g, "indices"), {{"axis", g.attrs().get_int("axis")}}));
  if (g.wants("addend")) g.add("addend", out_grad(g));
}

std::optional<ChunkCall> gather_elements_grad_chunk(const OpCall& call, Chunk) {
  std::optional<ChunkCall> made = chunk_along(call, "dy");
  if (!made || !call.has("addend")) return made;
  return call["indices"].rank() < call["dy"].rank() ? cut_operands(call, {"dy", "addend"})
                                                    : cut_operands(call, {"indices", "dy", "addend"});
}

// Along the axis itself the result has no letter, and sums of parts are not made.
std::optional<DividedCall> gather_elements_grad_divide(const OpCall& call, llvm::ArrayRef<Type> results,
                                                       const CutAt& known, int64_t) {
  const auto axis = static_cast<size_t>(call.get_int("axis"));
  LettersAlongAxis letters(call["dy"].shape, results[0].shape, axis, call["indices"].shape.size());
  letters.picked[axis] = '.';
  letters.indices = letters.picked.substr(letters.picked.size() - letters.indices.size());
  DimLetters all{{letters.indices, letters.picked}, {letters.whole}};
  if (call.has("addend")) all.operands.push_back(letters.whole);
  return divide_letters(call, all, known);
}

std::vector<Sample> gather_elements_grad_samples() {
  return {{{integers({2, 4}, -3, 2), normal({2, 4})}, {{"axis", 0}, {"size", 3}}},
          {{integers({2, 45}, -37, 36), normal({2, 45})}, {{"axis", 1}, {"size", 37}}},
          {{integers({2, 6, 3}, -4, 3, DType::I32), normal({2, 6, 3})}, {{"axis", 1}, {"size", 4}}},
          // Shared indices: many lines of one, elements that are picked often, and lines that lie apart.
          {{integers({2, 45}, -37, 36), fixed(normal({20, 2, 45}))}, {{"axis", 2}, {"size", 37}}},
          {{integers({300}, 0, 2, DType::I32), fixed(normal({9, 300})), fixed(normal({9, 130}))},
           {{"axis", 1}, {"size", 130}}},
          {{integers({6, 3}, -4, 3), normal({2, 6, 3})}, {{"axis", 1}, {"size", 4}}},
          {{integers({2, 4}, -3, 2), normal({2, 4}), normal({3, 4})}, {{"axis", 0}, {"size", 3}}}};
}

// ---- gather_nd ----

Result<Types> infer_gather_nd(const OpCall& call) {
  int64_t batch_dims = call.get_int("batch_dims");
  if (Status s = check_nd_indices(call, batch_dims)) return s;
  llvm::ArrayRef<int64_t> whole = call["x"].shape, indices = call["indices"].shape;
  Shape shape(indices.begin(), indices.end() - 1);
  llvm::append_range(shape, whole.drop_front(static_cast<size_t>(batch_dims + indices.back())));
  return one_result(call["x"].dtype, shape);
}

Status gather_nd_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &indices = call.in("indices"), &y = call.out("y");
  return for_each_nd_index(x.type.shape, indices, call.get_int("batch_dims"),
                           [&](int64_t i, int64_t at, int64_t count) { copy_elements(y, i * count, x, at, count); });
}

// The coordinates of each index along the batch dimensions, to stand before it: then no batch dimension is
// left.
Tensor batch_coordinates(const Type& indices, int64_t batch_dims) {
  Shape shape = indices.shape;
  shape.back() = batch_dims;
  Tensor coordinates(Type(indices.dtype, shape));
  llvm::ArrayRef<int64_t> batch = llvm::ArrayRef<int64_t>(shape).take_front(static_cast<size_t>(batch_dims));
  int64_t inner = coordinates.type().elements() / batch_dims / std::max<int64_t>(element_count(batch), 1);
  Shape strides = row_major_strides(batch);
  for (int64_t i = 0; i < coordinates.type().elements(); ++i) {
    int64_t tuple = i / batch_dims / inner, d = i % batch_dims;
    coordinates.view().set_int(i, tuple / strides[d] % batch[d]);
  }
  return coordinates;
}

void gather_nd_gradient(GradContext& g) {
  const Type type = g.type(g["x"]), index_type = g.type(g["indices"]);
  ValueId indices = g["indices"];
  if (int64_t batch_dims = g.attrs().get_int("batch_dims"))
    indices = g.b.emit("concat", {g.b.constant(batch_coordinates(index_type, batch_dims)), indices},
                       {{"axis", index_type.rank() - 1}});
  g.add("x", g.b.emit("scatter_nd", {zeros(g.b, type), indices, g.out_grad()}, {{"reduction", "add"}}));
}

std::vector<Sample> gather_nd_samples() {
  return {{{normal({3, 4}), integers({2, 2}, -3, 2)}, {}},
          {{normal({3, 2, 2}), integers({4, 1}, 0, 2, DType::I32)}, {{"batch_dims", 0}}},
          {{normal({2, 3, 2}), integers({2, 2, 1}, 0, 2)}, {{"batch_dims", 1}}},
          {{integers({2, 2}, -9, 9), integers({2}, 0, 1)}, {}}};
}

// ---- one_hot ----

Result<Types> infer_one_hot(const OpCall& call) {
  if (Status s = need_integer(call, "indices")) return s;
  if (Status s = need_type(call, "values", Type(call["values"].dtype, {2}))) return s;
  if (call.get_int("depth") < 1)
    return model_error("depth is " + llvm::Twine(call.get_int("depth")) + ", it must be at least 1");
  Shape shape = call["indices"].shape;
  if (Status s = need_axis(call.attrs, "axis", static_cast<int64_t>(shape.size()) + 1)) return s;
  shape.insert(shape.begin() + call.get_int("axis"), call.get_int("depth"));
  return one_result(call["values"].dtype, shape);
}

// An index outside [-depth, depth) lights nothing.
void one_hot_reference(const ReferenceCall& call) {
  const TensorView &indices = call.in("indices"), &values = call.in("values"), &y = call.out("y");
  AxisView view = along_axis(y.type.shape, call.get_int("axis"));
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t i = 0; i < view.inner; ++i) {
      int64_t index = indices.get_int(o * view.inner + i);
      if (index < 0) index += view.length;
      for (int64_t k = 0; k < view.length; ++k) copy_elements(y, view.at(o, k, i), values, k == index ? 1 : 0);
    }
}

std::vector<Sample> one_hot_samples() {
  return {{{integers({4}, -3, 3), fixed(values({2}, {0, 1}))}, {{"axis", 1}, {"depth", 3}}},
          {{integers({2, 3}, 0, 3), values({2}, {-1, 5}, DType::I32)}, {{"axis", 0}, {"depth", 4}}},
          {{integers({}, 0, 1), fixed(values({2}, {0, 1}))}, {{"axis", 0}, {"depth", 2}}}};
}

}  // namespace

constinit const OpDef op_gather{
    .name = "gather",
    .summary = "the slices of x along {axis} at the indices, which take that axis's place",
    .operands = {"x", "indices"},
    .attrs = {{"axis", AttrKind::Int}},
    .infer = infer_gather,
    .gradient = Gradient::rule(gather_gradient),
    .flops = no_flops,
    .chunk = gather_chunk,
    .divide = gather_divide,
    .linear = {"sum(x)"},
    .reference = gather_reference,
    .samples = gather_samples,
};

constinit const OpDef op_gather_grad{
    .name = "gather_grad",
    .summary =
        "the slices of dy added at the indices into zeros, or into an addend of the result's type, {size} long at "
        "{axis}; rounded to {dtype} when given",
    .operands = {"indices", "dy", "addend?"},
    .results = {"dx"},
    .attrs = {{"axis", AttrKind::Int}, {"size", AttrKind::Int}, sum_dtype_attr},
    .infer = infer_gather_grad,
    .gradient = Gradient::rule(gather_grad_gradient),
    .addend = "addend",
    .in_place = {{"dx", "addend"}},
    .flops = one_add_each,
    .chunk = gather_grad_chunk,
    .linear = {"sum(dy) + addend"},
    .reference = gather_grad_reference,
    .samples = gather_grad_samples,
};

constinit const OpDef op_gather_elements{
    .name = "gather_elements",
    .summary =
        "at each index the element of x whose coordinate along {axis} is given by indices; slices along leading "
        "dimensions that indices lack share them",
    .operands = {"x", "indices"},
    .attrs = {{"axis", AttrKind::Int}},
    .infer = infer_gather_elements,
    .gradient = Gradient::rule(gather_elements_gradient),
    .flops = no_flops,
    .chunk = gather_elements_chunk,
    .divide = gather_elements_divide,
    .linear = {"sum(x)"},
    .reference = gather_elements_reference,
    .samples = gather_elements_samples,
};

constinit const OpDef op_gather_elements_grad{
    .name = "gather_elements_grad",
    .summary =
        "the elements of dy added at the indices into zeros, or into an addend of the result's type, {size} long at "
        "{axis}; slices along leading dimensions that indices lack share them",
    .operands = {"indices", "dy", "addend?"},
    .results = {"dx"},
    .attrs = {{"axis", AttrKind::Int}, {"size", AttrKind::Int}},
    .infer = infer_gather_elements_grad,
    .gradient = Gradient::rule(gather_elements_grad_gradient),
    .addend = "addend",
    .in_place = {{"dx", "addend"}},
    .flops = one_add_each,
    .chunk = gather_elements_grad_chunk,
    .divide = gather_elements_grad_divide,
    .linear = {"sum(dy) + addend"},
    .reference = gather_elements_grad_reference,
    .samples = gather_elements_grad_samples,
};

constinit const OpDef op_gather_nd{
    .name = "gather_nd",
    .summary = "the slices of x at the coordinates in the last dimension of indices, after {batch_dims} shared ones",
    .operands = {"x", "indices"},
    .attrs = {{"batch_dims", 0}},
    .infer = infer_gather_nd,
    .gradient = Gradient::rule(gather_nd_gradient),
    .flops = no_flops,
    .linear = {"sum(x)"},
    .reference = gather_nd_reference,
    .samples = gather_nd_samples,
};

constinit const OpDef op_one_hot{
    .name = "one_hot",
    .summary = "values[1] at each index along a new {axis} of length {depth}, values[0] elsewhere",
    .operands = {"indices", "values"},
    .attrs = {{"axis", AttrKind::Int}, {"depth", AttrKind::Int}},
    .infer = infer_one_hot,
    .gradient = Gradient::missing("the on and off values of one_hot count as constants"),
    .flops = no_flops,
    .linear = {"sum(values)"},
    .reference = one_hot_reference,
    .samples = one_hot_samples,
};

}  // namespace plimsoll
