#include "ir/awaited.h"
#include "passes/rewrite/patterns.h"

#include <set>

// A cross-entropy and its gradient become one op, which takes a row of logits from memory once and writes the gradient
// over it. The pair reads all logits twice.
//
// It applies where the gradients of the loss and of the lse depend on neither: they come from the step's seed, and
// ranks that divide the classes, whose lse has a gradient that depends on the lse, keep the pair. The seed may be the
// summed weight of the labels, which is then made of the labels alone. The op stands where the gradient stood. What
// depends on the loss moves behind it, unless other stages wait for it, or it reads a tensor as large as the logits,
// which would be alive beside the gradient.
//
// It is right because the gradient's operands are the loss's own, so that they are all there where the gradient is.

namespace plimsoll {
namespace {

// The loss that the gradient belongs to; None where its operands are not that loss's own.
NodeId loss_of(const Graph& graph, const Node& grad) {
  const ValueId lse = operand_of(grad, "lse");
  const Node* loss = producer_of(graph, lse, "cross_entropy");
  if (!loss || loss->attrs != grad.attrs) return NodeId::None;
  const OpDef& op = *loss->op;
  if (loss->results[op.result("lse")] != lse || loss->results[op.result("weight")] != operand_of(grad, "weight"))
    return NodeId::None;
  for (const char* name : {"logits", "labels", "class_weights"})
    if (operand_of(*loss, name) != operand_of(grad, name)) return NodeId::None;
  return graph.value(lse).producer;
}

// What depends on some results of the loss before its gradient does.
struct Dependents {
  std::vector<NodeId> nodes;  // in order
  std::set<ValueId> values;

  Dependents(const Graph& graph, NodeId loss, NodeId grad, llvm::ArrayRef<ValueId> results)
      : values(results.begin(), results.end()) {
    for (NodeId id = graph.next_node(loss); id != grad; id = graph.next_node(id)) {
      const Node& node = graph.node(id);
      if (llvm::none_of(node.operands, [&](ValueId operand) { return values.count(operand) > 0; })) continue;
      nodes.push_back(id);
      values.insert(node.results.begin(), node.results.end());
    }
  }

  bool decide_gradients(const Node& grad) const {
    return values.count(operand_of(grad, "dloss")) > 0 || values.count(operand_of(grad, "dlse")) > 0;
  }
};

bool may_come_after(const Graph& graph, NodeId id, int64_t logits_bytes) {
  const Node& node = graph.node(id);
  return !is_awaited(node) && llvm::none_of(node.operands, [&](ValueId operand) {
    return operand != ValueId::None && graph.type(operand).bytes() >= logits_bytes;
  });
}

bool try_join(Graph& graph, NodeId id) {
  const NodeId loss_id = loss_of(graph, graph.node(id));
  if (loss_id == NodeId::None) return false;
  const Node loss = graph.node(loss_id), grad = graph.node(id);
  llvm::SmallVector<ValueId, 4> made_late(loss.results.begin(), loss.results.end());
  const bool starts_from_weight = Dependents(graph, loss_id, id, made_late).decide_gradients(grad);
  if (starts_from_weight) made_late.pop_back();
  const Dependents after(graph, loss_id, id, made_late);
  const int64_t logits_bytes = graph.type(operand_of(grad, "logits")).bytes();
  if (after.decide_gradients(grad) ||
      !llvm::all_of(after.nodes, [&](NodeId node) { return may_come_after(graph, node, logits_bytes); }))
    return false;

  if (starts_from_weight) {
    Builder at_loss = builder_at(graph, loss_id);
    replace_and_rename(graph, loss.results.back(), loss.op->sample_weight(at_loss, loss_id));
  }
  // The replaced weight may be what the gradient starts from.
  llvm::SmallVector<ValueId, 5> operands;
  for (const char* name : {"logits", "labels", "dloss", "class_weights", "dlse"})
    operands.push_back(operand_of(graph.node(id), name));
  while (operands.back() == ValueId::None) operands.pop_back();
  const auto made = builder_at(graph, id).emit_all("cross_entropy_with_grad", operands, grad.attrs);
  replace_and_rename(graph, grad.results[0], made[0]);
  for (size_t i = 0; i < made_late.size(); ++i) replace_and_rename(graph, made_late[i], made[i + 1]);
  const NodeId behind = graph.next_node(id);
  for (NodeId node : after.nodes) graph.move_before(node, behind);
  graph.erase_node(id);
  graph.erase_node(loss_id);
  return true;
}

Result<bool> run_join_cross_entropy(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"cross_entropy_grad", "joined", try_join}});
}

}  // namespace

constinit const PassInfo pass_join_cross_entropy{
    .name = "join-cross-entropy",
    .summary = "let one op make a cross-entropy and its gradient, so that logits are read once",
    .run = run_join_cross_entropy,
};

}  // namespace plimsoll
