#pragma once

// Makes nodes through OpDef::infer, so that an ill-typed node cannot exist.

#include "ir/op_def.h"

namespace plimsoll {

class Builder {
 public:
  explicit Builder(Graph& graph, NodeId before = NodeId::None) : graph_(graph), before_(before) {}

  // New nodes get these.
  OriginId origin = OriginId::None;
  Phase phase = Phase::Forward;

  Graph& graph() { return graph_; }
  const Type& type(ValueId value) const { return graph_.type(value); }
  void insert_before(NodeId node) { before_ = node; }

  // For calls whose types depend on the user's model: the error names what is wrong.
  Result<NodeId> create(const OpDef& op, llvm::ArrayRef<ValueId> operands, Attrs attrs = {},
                        llvm::ArrayRef<std::string> names = {});
  // For calls that are right by construction: a failure is our own bug. Gives result 0.
  ValueId emit(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, Attrs attrs = {}, llvm::StringRef name = "");
  llvm::SmallVector<ValueId, 4> emit_all(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, Attrs attrs = {},
                                         llvm::ArrayRef<std::string> names = {});

  // Shorthands; each returns its argument where there is nothing to do.
  ValueId constant(Tensor value, llvm::StringRef name = "const");
  ValueId scalar(double value, DType dtype);  // rank 0
  ValueId reshape(ValueId x, llvm::ArrayRef<int64_t> shape);
  ValueId cast(ValueId x, DType dtype);
  ValueId expand(ValueId x, llvm::ArrayRef<int64_t> shape);
  ValueId transpose(ValueId x, llvm::ArrayRef<int64_t> permutation);
  ValueId sum(ValueId x, llvm::ArrayRef<int64_t> axes, bool keep_dims);
  // Sums x over the dimensions along which `shape` was broadcast to x's shape.
  ValueId sum_to_shape(ValueId x, llvm::ArrayRef<int64_t> shape);

 private:
  Graph& graph_;
  NodeId before_;
};

// A node as a gradient rule sees it. Gradients of a value are added up by the caller; a rule that asks for an operand
// or a result thereby decides that backward keeps it.
class GradContext {
 public:
  GradContext(Builder& builder, NodeId node, llvm::ArrayRef<ValueId> out_grads, llvm::ArrayRef<bool> wanted)
      : b(builder), node_(node), out_grads_(out_grads), wanted_(wanted), grads_(wanted.size(), ValueId::None) {}

  Builder& b;

  const Node& node() const { return b.graph().node(node_); }
  const Attrs& attrs() const { return node().attrs; }
  size_t operand_count() const { return node().operands.size(); }
  size_t index(PortKey operand) const { return operand.in(node().op->operands); }
  bool has(PortKey operand) const { return index(operand) < operand_count() && (*this)[operand] != ValueId::None; }
  ValueId operator[](PortKey operand) const { return node().operands[index(operand)]; }
  ValueId result(PortKey result) const { return node().results[result.in(node().op->results)]; }
  const Type& type(ValueId value) const { return b.type(value); }

  // Gradient with respect to a result; None when nothing flows into it. At least one flows.
  ValueId out_grad(PortKey result = size_t{0}) const { return out_grads_[result.in(node().op->results)]; }
  // The same, as zeros where nothing flows.
  ValueId out_grad_or_zero(PortKey result);
  // Is a gradient for this operand needed? At least one is; a rule should emit nothing for the others.
  bool wants(PortKey operand) const { return index(operand) < wanted_.size() && wanted_[index(operand)]; }
  // The gradient for an operand, of the operand's type; call at most once each.
  void add(PortKey operand, ValueId grad);

  // The error of a rule that has no gradient for an operand that is wanted: `what` cannot be trained. It names the
  // trained parameters behind the operand.
  Status cannot_train(PortKey operand, const llvm::Twine& what) const;

  llvm::ArrayRef<ValueId> gradients() const { return grads_; }

 private:
  NodeId node_;
  llvm::ArrayRef<ValueId> out_grads_;
  llvm::ArrayRef<bool> wanted_;
  llvm::SmallVector<ValueId, 4> grads_;
};

}  // namespace plimsoll
