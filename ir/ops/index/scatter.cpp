// Ops that write or add elements at indices: scatter_elements and scatter_nd, with the reductions of ONNX.
// Updates are applied in order, so that of several writes to one place the last stays.

#include "ir/ops/common/expr.h"
#include "ir/ops/common/samples.h"
#include "ir/ops/index/indexing.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {

Status check_elements_indices(const OpCall& call) {
  if (Status s = need_rank(call, "indices", call["x"].rank())) return s;
  return check_shared_indices(call, call["x"]);
}

Status check_shared_indices(const OpCall& call, const Type& x) {
  if (Status s = need_index(call, "indices")) return s;
  const Type& indices = call["indices"];
  if (Status s = need_axis(call.attrs, "axis", x.rank())) return s;
  const int64_t absent = x.rank() - indices.rank(), axis = call.get_int("axis");
  if (absent < 0 || absent > axis)
    return model_error("indices " + to_string(indices) + " do not fit " + to_string(x) + " along axis " +
                       llvm::Twine(axis));
  for (int64_t d = absent; d < x.rank(); ++d)
    if (d != axis && indices.shape[d - absent] > x.shape[d])
      return model_error("indices " + to_string(indices) + " reach beyond dimension " + llvm::Twine(d) + " of " +
                         to_string(x));
  return Status::success();
}

Shape indexed_shape(const Type& x, const Type& indices) {
  Shape shape(x.shape.begin(), x.shape.end() - indices.rank());
  llvm::append_range(shape, indices.shape);
  return shape;
}

Status check_nd_indices(const OpCall& call, int64_t batch_dims) {
  if (Status s = need_index(call, "indices")) return s;
  const Type &x = call["x"], &indices = call["indices"];
  if (indices.rank() == 0) return model_error("the indices need a dimension of coordinates, they are a scalar");
  if (batch_dims < 0 || batch_dims >= std::min(x.rank() + 1, indices.rank()))
    return model_error("batch_dims is " + llvm::Twine(batch_dims) + ", the ranks are " + llvm::Twine(x.rank()) +
                       " and " + llvm::Twine(indices.rank()));
  int64_t depth = indices.shape.back();
  if (batch_dims + depth > x.rank())
    return model_error("coordinates of " + llvm::Twine(depth) + " dimensions after " + llvm::Twine(batch_dims) +
                       " batch dimensions, the rank is " + llvm::Twine(x.rank()));
  for (int64_t d = 0; d < batch_dims; ++d)
    if (x.shape[d] != indices.shape[d])
      return model_error("batch dimension " + llvm::Twine(d) + " differs: " + llvm::Twine(x.shape[d]) + " and " +
                         llvm::Twine(indices.shape[d]));
  return Status::success();
}

namespace {

using namespace samples;

constexpr llvm::StringLiteral reductions[] = {"none", "add", "mul", "max", "min"};

llvm::StringRef reduction_of(const Attrs& attrs) { return attrs.get_string("reduction", "none"); }

Status check_reduction(const OpCall& call) {
  if (Status s = need_choice(call.attrs, "reduction", reductions)) return s;
  if (call["x"].dtype == DType::Bool && reduction_of(call.attrs) != "none")
    return model_error("operand 0 is bool, reduction '" + reduction_of(call.attrs) + "' needs numbers");
  return need_same_dtype(call, "x", "updates");
}

Result<Types> infer_scatter_elements(const OpCall& call) {
  if (Status s = check_elements_indices(call)) return s;
  if (Status s = check_reduction(call)) return s;
  if (Status s = need_type(call, "updates", Type(call["x"].dtype, call["indices"].shape))) return s;
  return Types{call["x"]};
}

Result<Types> infer_scatter_nd(const OpCall& call) {
  if (Status s = check_nd_indices(call, 0)) return s;
  if (Status s = check_reduction(call)) return s;
  llvm::ArrayRef<int64_t> whole = call["x"].shape, indices = call["indices"].shape;
  Shape shape(indices.begin(), indices.end() - 1);
  llvm::append_range(shape, whole.drop_front(static_cast<size_t>(indices.back())));
  if (Status s = need_type(call, "updates", Type(call["x"].dtype, shape))) return s;
  return Types{call["x"]};
}

template <typename T>
T combine(llvm::StringRef reduction, T old, T update) {
  if (reduction == "add") return old + update;
  if (reduction == "mul") return old * update;
  return reduction == "max" ? std::max(old, update) : std::min(old, update);
}

void write_update(llvm::StringRef reduction, const TensorView& y, int64_t at, const TensorView& updates, int64_t i) {
  if (reduction == "none")
    copy_elements(y, at, updates, i);
  else if (is_float(y.type.dtype))
    y.set(at, combine(reduction, y.get(at), updates.get(i)));
  else
    y.set_int(at, combine(reduction, y.get_int(at), updates.get_int(i)));
}

// Sums are rounded to the type of y once.
Status add_elements(const ReferenceCall& call) {
  std::vector<double> sums = call.load("x"), updates = call.load("updates");
  if (Status s = for_each_element_index(call.out("y").type.shape, call.get_int("axis"), call.in("indices"),
                                        [&](int64_t i, int64_t at) { sums[at] += updates[i]; }))
    return s;
  call.store(sums, "y");
  return Status::success();
}

Status scatter_elements_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &indices = call.in("indices"), &updates = call.in("updates"), &y = call.out("y");
  if (reduction_of(call.attrs) == "add" && is_float(y.type.dtype)) return add_elements(call);
  copy_elements(y, 0, x, 0, y.elements());
  return for_each_element_index(y.type.shape, call.get_int("axis"), indices, [&](int64_t i, int64_t at) {
    write_update(reduction_of(call.attrs), y, at, updates, i);
  });
}

Status scatter_nd_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &indices = call.in("indices"), &updates = call.in("updates"), &y = call.out("y");
  copy_elements(y, 0, x, 0, y.elements());
  return for_each_nd_index(y.type.shape, indices, 0, [&](int64_t tuple, int64_t at, int64_t count) {
    for (int64_t i = 0; i < count; ++i) write_update(reduction_of(call.attrs), y, at + i, updates, tuple * count + i);
  });
}

// Updates get dy where they went. x gets dy, but for the places that were overwritten.
Status scatter_gradient(GradContext& g, llvm::StringRef scatter, llvm::StringRef gather, const Attrs& gather_attrs) {
  std::string reduction = reduction_of(g.attrs()).str();
  if (reduction != "none" && reduction != "add")
    return model_error(scatter + " with reduction '" + reduction + "' has no gradient rule; none and add have");
  const Type updates = g.type(g["updates"]);
  if (g.wants("x") && reduction == "add") g.add("x", g.out_grad());
  if (g.wants("x") && reduction == "none")
    g.add("x", g.b.emit(scatter, {g.out_grad(), g["indices"], zeros(g.b, updates)}, g.attrs()));
  if (g.wants("updates")) g.add("updates", apply(gather, out_grad(g), operand(g, "indices"), gather_attrs));
  return Status::success();
}

Status scatter_elements_gradient(GradContext& g) {
  return scatter_gradient(g, "scatter_elements", "gather_elements", {{"axis", g.attrs().get_int("axis")}});
}

Status scatter_nd_gradient(GradContext& g) { return scatter_gradient(g, "scatter_nd", "gather_nd", {}); }

double one_each_update(const OpCall& call, llvm::ArrayRef<Type>) {
  return reduction_of(call.attrs) == "none" ? 0 : static_cast<double>(call["updates"].elements());
}

Attrs with_reduction(llvm::StringRef reduction) { return {{"reduction", reduction.str()}}; }

// Indices without repetition: which of two writes stays has no derivative.
std::vector<Sample> scatter_elements_samples() {
  auto attrs = [](int64_t axis, llvm::StringRef reduction) {
    Attrs list = with_reduction(reduction);
    list.set("axis", axis);
    return list;
  };
  SampleOperand once = values({2, 3}, {0, 2, 1, 3, 1, -4}, DType::I64);
  SampleOperand columns = values({3, 2}, {0, 3, 2, 2, -1, 1}, DType::I32);
  return {{{normal({4, 3}), once, normal({2, 3})}, {{"axis", 0}}},
          {{normal({3, 4}), columns, normal({3, 2})}, attrs(1, "add")},
          {{normal({2, 37}), integers({2, 45}, -37, 36), normal({2, 45})}, attrs(1, "add")},
          {{normal({2, 4, 3}), integers({2, 6, 3}, -4, 3, DType::I32), normal({2, 6, 3})}, attrs(1, "add")},
          {{fixed(normal({3, 4})), columns, fixed(normal({3, 2}))}, attrs(1, "max")},
          {{integers({3, 4}, -9, 9), columns, integers({3, 2}, -9, 9)}, attrs(1, "mul")}};
}

std::vector<Sample> scatter_nd_samples() {
  SampleOperand pairs = values({3, 2}, {0, 1, 2, -1, 1, 0}, DType::I64);
  SampleOperand rows = values({2, 1}, {2, 2}, DType::I64);
  return {{{normal({3, 4}), pairs, normal({3})}, {}},
          {{normal({3, 4}), rows, normal({2, 4})}, with_reduction("add")},
          {{fixed(normal({3, 4})), rows, fixed(normal({2, 4}))}, with_reduction("min")},
          {{integers({3, 4}, -9, 9), pairs, integers({3}, -9, 9)}, with_reduction("none")}};
}

}  // namespace

constinit const OpDef op_scatter_elements{
    .name = "scatter_elements",
    .summary = "x with each update written, or combined by {reduction}, where indices say along {axis}",
    .operands = {"x", "indices", "updates"},
    .attrs = {{"axis", AttrKind::Int}, {"reduction", "none"}},
    .infer = infer_scatter_elements,
    .gradient = Gradient::rule(scatter_elements_gradient),
    .in_place = {{"y", "x"}},
    .flops = one_each_update,
    .linear = {"?"},
    .reference = scatter_elements_reference,
    .samples = scatter_elements_samples,
};

constinit const OpDef op_scatter_nd{
    .name = "scatter_nd",
    .summary = "x with each slice of updates written, or combined by {reduction}, at its coordinates in indices",
    .operands = {"x", "indices", "updates"},
    .attrs = {{"reduction", "none"}},
    .infer = infer_scatter_nd,
    .gradient = Gradient::rule(scatter_nd_gradient),
    .in_place = {{"y", "x"}},
    .flops = one_each_update,
    .linear = {"?"},
    .reference = scatter_nd_reference,
    .samples = scatter_nd_samples,
};

}  // namespace plimsoll
