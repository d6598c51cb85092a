#include "passes/partition/resize_batch.h"

#include "passes/rewrite/match.h"

#include <cstring>

namespace plimsoll {
namespace {

class BatchResizer {
 public:
  BatchResizer(Graph& graph, const BatchInputs& batch, int64_t from, int64_t to)
      : graph_(graph), batch_(batch), from_(from), to_(to) {
    for (size_t i = 0; i < graph.value_count(); ++i) before_.push_back(graph.type(static_cast<ValueId>(i)));
  }

  Status run() {
    for (ValueId input : batch_.inputs) {
      Type type = graph_.type(input);
      type.shape[0] = type.shape[0] / from_ * to_;
      graph_.set_type(input, type);
    }
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (Status s = visit(id)) return s;
    return Status::success();
  }

 private:
  Type old_type(ValueId value) const {
    return index_of(value) < before_.size() ? before_[index_of(value)] : graph_.type(value);
  }

  bool changed(ValueId value) const { return value != ValueId::None && old_type(value) != graph_.type(value); }

  Status visit(NodeId id) {
    const Node& node = graph_.node(id);
    if (llvm::none_of(node.operands, [&](ValueId operand) { return changed(operand); })) return Status::success();
    Result<Types> types = infer_again(id);
    if (!types) {
      // The exporter repeated a value over the batch (a class token, position ids); it is repeated over the new batch.
      llvm::consumeError(types.takeError());
      if (repeat_operands(id))
        types = infer_again(id);
      else
        return refuse(id, "its operands no longer fit each other");
      if (!types) return refuse(id, take_diag(types.takeError()).text());
    }
    for (size_t i = 0; i < types->size(); ++i) {
      if ((*types)[i].rank() != graph_.type(node.results[i]).rank()) return refuse(id, "its rank would change");
      graph_.set_type(node.results[i], (*types)[i]);
    }
    return Status::success();
  }

  Result<Types> infer_again(NodeId id) {
    Node& node = graph_.node(id);
    llvm::SmallVector<Type, 4> old;
    for (ValueId operand : node.operands) old.push_back(operand == ValueId::None ? Type() : old_type(operand));
    llvm::SmallVector<const Type*, 4> before, after = operand_types(graph_, node);
    for (size_t i = 0; i < old.size(); ++i) before.push_back(after[i] ? &old[i] : nullptr);
    if (node.op->attrs_for_batch) {
      Result<Attrs> attrs = node.op->attrs_for_batch(OpCall(*node.op, node.attrs, before), after);
      if (!attrs) return attrs.takeError();
      Result<Types> types = infer(OpCall(*node.op, *attrs, after));
      if (types) node.attrs = *attrs;
      return types;
    }
    return infer(OpCall(*node.op, node.attrs, after));
  }

  // Gives this node its own resized copy of each operand whose leading dim was the old batch and whose rows are equal:
  // an expand, or a constant, such as token types that are all zero.
  bool repeat_operands(NodeId id) {
    bool any = false;
    for (size_t i = 0; i < graph_.node(id).operands.size(); ++i) {
      ValueId operand = graph_.node(id).operands[i];
      if (operand == ValueId::None || changed(operand)) continue;
      NodeId producer = graph_.value(operand).producer;
      if (producer == NodeId::None) continue;
      if (graph_.node(producer).op->name == "constant") any = repeat_constant(id, i, producer) || any;
      if (graph_.node(producer).op->name != "expand") continue;
      ValueId source = graph_.node(producer).operands[0];
      Shape shape = graph_.type(operand).shape;
      bool repeats = !shape.empty() && shape[0] == from_ &&
                     (graph_.type(source).shape.size() < shape.size() || graph_.type(source).shape[0] == 1);
      if (!repeats) continue;
      shape[0] = to_;
      Builder b(graph_, id);
      b.origin = graph_.node(producer).origin;
      graph_.set_operand(id, i, b.expand(source, shape));
      any = true;
    }
    return any;
  }

  bool repeat_constant(NodeId id, size_t operand, NodeId constant) {
    const Tensor& old = *graph_.node(constant).attrs.get_tensor("value");
    Type type = old.type();
    if (type.shape.empty() || type.shape[0] != from_) return false;
    const auto row_bytes = static_cast<size_t>(type.bytes() / from_);
    const auto* first = static_cast<const char*>(old.data());
    for (int64_t row = 1; row < from_; ++row)
      if (std::memcmp(first, first + static_cast<size_t>(row) * row_bytes, row_bytes) != 0) return false;
    type.shape[0] = to_;
    Tensor resized(type);
    for (int64_t row = 0; row < to_; ++row)
      std::memcpy(static_cast<char*>(resized.data()) + static_cast<size_t>(row) * row_bytes, first, row_bytes);
    Builder b(graph_, id);
    b.origin = graph_.node(constant).origin;
    graph_.set_operand(id, operand, b.constant(std::move(resized)));
    return true;
  }

  Status refuse(NodeId id, llvm::StringRef why) const {
    return model_error(model_name(graph_, id) + ": the batch of " + llvm::Twine(from_) + " cannot become " +
                       llvm::Twine(to_) + " through " + graph_.node(id).op->name + ": " + why +
                       "; export the model with a dynamic batch dimension instead");
  }

  Graph& graph_;
  const BatchInputs& batch_;
  int64_t from_, to_;
  std::vector<Type> before_;
};

}  // namespace

Status resize_batch(Graph& graph, int64_t batch) {
  if (batch < 1) return usage_error("a batch must be at least 1, got " + llvm::Twine(batch));
  Result<BatchInputs> from = find_batch(graph);
  if (!from) return in_context("the batch cannot be changed", from.takeError());
  if (from->samples == 0)
    return model_error(from->inputs.empty()
                           ? "the batch cannot be changed: the model has no input with a batch dimension"
                           : "the batch cannot be changed: the inputs do not share a leading dimension");
  if (from->samples == batch) return Status::success();
  return resize_batch(graph, *from, from->samples, batch);
}

Status resize_batch(Graph& graph, const BatchInputs& batch, int64_t samples, int64_t to) {
  return BatchResizer(graph, batch, samples, to).run();
}

}  // namespace plimsoll
