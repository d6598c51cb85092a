#include "ir/builder.h"

#include "ir/depends_on_parameter.h"

#include <cassert>

namespace plimsoll {

Result<NodeId> Builder::create(const OpDef& op, llvm::ArrayRef<ValueId> operands, Attrs attrs,
                               llvm::ArrayRef<std::string> names) {
  llvm::SmallVector<const Type*, 4> types;
  for (ValueId operand : operands) types.push_back(operand == ValueId::None ? nullptr : &graph_.type(operand));
  Result<Types> results = infer(OpCall(op, attrs, types));
  if (!results) return in_context(op.name, results.takeError());
  NodeId id = graph_.add_node(op, operands, std::move(attrs), *results, names, before_);
  graph_.node(id).origin = origin;
  graph_.node(id).phase = phase;
  return id;
}

llvm::SmallVector<ValueId, 4> Builder::emit_all(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, Attrs attrs,
                                                llvm::ArrayRef<std::string> names) {
  Result<NodeId> node = create(get_op(op), operands, std::move(attrs), names);
  if (!node) llvm::report_fatal_error(node.takeError());
  const auto& results = graph_.node(*node).results;
  return llvm::SmallVector<ValueId, 4>(results.begin(), results.end());
}

ValueId Builder::emit(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, Attrs attrs, llvm::StringRef name) {
  if (name.empty()) return emit_all(op, operands, std::move(attrs)).front();
  return emit_all(op, operands, std::move(attrs), {name.str()}).front();
}

ValueId Builder::constant(Tensor value, llvm::StringRef name) {
  return emit("constant", {}, {{"value", std::make_shared<const Tensor>(std::move(value))}}, name);
}

ValueId Builder::scalar(double value, DType dtype) { return constant(Tensor::scalar(value, dtype)); }

ValueId Builder::reshape(ValueId x, llvm::ArrayRef<int64_t> shape) {
  if (llvm::ArrayRef<int64_t>(type(x).shape) == shape) return x;
  return emit("reshape", {x}, {{"shape", Ints(shape.begin(), shape.end())}});
}

ValueId Builder::cast(ValueId x, DType dtype) {
  return type(x).dtype == dtype ? x : emit("cast", {x}, {{"to", dtype}});
}

ValueId Builder::expand(ValueId x, llvm::ArrayRef<int64_t> shape) {
  if (llvm::ArrayRef<int64_t>(type(x).shape) == shape) return x;
  return emit("expand", {x}, {{"shape", Ints(shape.begin(), shape.end())}});
}

ValueId Builder::transpose(ValueId x, llvm::ArrayRef<int64_t> permutation) {
  bool identity = true;
  for (size_t i = 0; i < permutation.size(); ++i) identity &= permutation[i] == static_cast<int64_t>(i);
  return identity ? x : emit("transpose", {x}, {{"perm", Ints(permutation.begin(), permutation.end())}});
}

ValueId Builder::sum(ValueId x, llvm::ArrayRef<int64_t> axes, bool keep_dims) {
  if (axes.empty()) return x;
  return emit("reduce_sum", {x}, {{"axes", Ints(axes.begin(), axes.end())}, {"keep_dims", int64_t{keep_dims}}});
}

ValueId Builder::sum_to_shape(ValueId x, llvm::ArrayRef<int64_t> shape) {
  const Shape from = type(x).shape;
  size_t extra = from.size() - shape.size();
  Ints axes;
  for (size_t i = 0; i < from.size(); ++i)
    if (i < extra || (shape[i - extra] == 1 && from[i] != 1)) axes.push_back(static_cast<int64_t>(i));
  return reshape(sum(x, axes, true), shape);
}

ValueId GradContext::out_grad_or_zero(PortKey of) {
  if (out_grad(of) != ValueId::None) return out_grad(of);
  const Type type = b.type(result(of));
  return b.expand(b.scalar(0, type.dtype), type.shape);
}

void GradContext::add(PortKey operand, ValueId grad) {
  const size_t i = index(operand);
  assert(grads_[i] == ValueId::None && "one gradient per operand");
  assert(b.type(grad) == b.type((*this)[i]) && "a gradient has its operand's type");
  grads_[i] = grad;
}

Status GradContext::cannot_train(PortKey operand, const llvm::Twine& what) const {
  constexpr size_t most_named = 3;
  const std::vector<ValueId> behind = trained_parameters_behind(b.graph(), (*this)[operand]);
  std::string names;
  for (ValueId parameter : llvm::ArrayRef(behind).take_front(most_named))
    names += (names.empty() ? "" : ", ") + b.graph().value(parameter).name;
  if (behind.size() > most_named) names += " and " + std::to_string(behind.size() - most_named) + " more";
  return model_error(what + " cannot be trained" +
                     (names.empty() ? "" : "; parameters that reach them and may be frozen: " + names));
}

}  // namespace plimsoll
