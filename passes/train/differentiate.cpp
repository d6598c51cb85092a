#include "passes/train/differentiate.h"

#include "ir/support/strings.h"
#include "passes/analysis/dependence.h"
#include "passes/rewrite/match.h"

// One sweep runs back over the nodes. Contributions to a value are added as they appear, so at most one partial sum of
// each value is alive.

#include <algorithm>

namespace plimsoll {
namespace {

class Differentiator {
 public:
  Differentiator(Graph& graph, llvm::ArrayRef<ValueId> wrt)
      : graph_(graph),
        builder_(graph),
        dependent_(find_dependent(graph, wrt)),
        grads_(graph.value_count(), ValueId::None) {
    builder_.phase = Phase::Backward;
  }

  void seed(ValueId loss, ValueId grad) { grads_[index_of(loss)] = grad; }
  ValueId grad(ValueId value) const { return grads_[index_of(value)]; }

  Status visit(NodeId id) {
    const Node& node = graph_.node(id);
    const Gradient gradient = node.op->gradient;
    if (gradient.kind() == Gradient::Kind::Zero) return Status::success();
    llvm::SmallVector<ValueId, 4> out_grads;
    for (ValueId result : node.results) out_grads.push_back(take_grad(result));
    if (llvm::all_of(out_grads, [](ValueId grad) { return grad == ValueId::None; })) return Status::success();
    llvm::SmallVector<bool, 4> wanted;
    for (ValueId operand : node.operands)
      wanted.push_back(operand != ValueId::None && dependent_[index_of(operand)] &&
                       is_float(graph_.type(operand).dtype));
    if (llvm::none_of(wanted, [](bool w) { return w; })) return Status::success();
    if (gradient.kind() == Gradient::Kind::Missing)
      return model_error(model_name(graph_, id) + ": " + node.op->name +
                         " cannot be differentiated: " + gradient.why());

    llvm::SmallVector<ValueId, 4> operands = node.operands;
    builder_.origin = node.origin;
    GradContext context(builder_, id, out_grads, wanted);
    if (Status s = gradient.function()(context)) return in_context(model_name(graph_, id), std::move(s));
    for (size_t i = 0; i < operands.size(); ++i)
      if (context.gradients()[i] != ValueId::None) add(operands[i], context.gradients()[i]);
    return Status::success();
  }

 private:
  // The finished gradient of a forward value, under the value's name.
  ValueId take_grad(ValueId value) {
    ValueId grad = grads_[index_of(value)];
    if (grad != ValueId::None) name_grad(value, grad);
    return grad;
  }

  void name_grad(ValueId value, ValueId grad) {
    llvm::StringRef now = graph_.value(grad).name;
    bool fresh = graph_.value(grad).producer != NodeId::None &&
                 graph_.node(graph_.value(grad).producer).phase == Phase::Backward;
    if (fresh && !ends_with(now, ".grad")) graph_.rename(grad, graph_.value(value).name + ".grad");
  }

  void add(ValueId value, ValueId grad) {
    ValueId& sum = grads_[index_of(value)];
    sum = sum == ValueId::None ? grad : builder_.emit("add", {sum, grad});
  }

  Graph& graph_;
  Builder builder_;
  std::vector<bool> dependent_;
  std::vector<ValueId> grads_;  // by forward value
};

}  // namespace

std::vector<NodeId> find_gradient_ends(const Graph& graph, ValueId loss, llvm::ArrayRef<ValueId> wrt,
                                       Gradient::Kind kind) {
  const Flow flow = kind == Gradient::Kind::Zero ? Flow::Data : Flow::Gradient;
  std::vector<bool> dependent = find_dependent(graph, wrt), contributes = find_contributing(graph, loss, flow);
  std::vector<NodeId> ends = graph.order();
  llvm::erase_if(ends, [&](NodeId id) {
    const Node& node = graph.node(id);
    return node.op->gradient.kind() != kind || !any_in(node.operands, dependent) || !any_in(node.results, contributes);
  });
  return ends;
}

Result<std::vector<ValueId>> differentiate(Graph& graph, ValueId loss, ValueId seed, llvm::ArrayRef<ValueId> wrt) {
  Differentiator sweep(graph, wrt);
  sweep.seed(loss, seed);
  std::vector<NodeId> forward = graph.order();
  for (auto id = forward.rbegin(); id != forward.rend(); ++id)
    if (Status s = sweep.visit(*id)) return s;
  std::vector<ValueId> grads;
  for (ValueId value : wrt) grads.push_back(sweep.grad(value));
  return grads;
}

}  // namespace plimsoll
