#include "passes/rewrite/patterns.h"

// An op that takes an addend (OpDef::addend) makes the sum of its result and another value. This saves a pass over
// memory and a rounding for residual connections and their gradients, for gradients that several layers send to one
// value, and for weight gradients over micro-batches, which go straight into their accumulators.
//
// It applies where nothing else reads the result, both sides have the sum's type, and the other side is computed before
// the op. No op moves, since its operands would have to wait with it. Views between the op and the sum move behind the
// op. An op has one addend: where two ops could make a sum, the later one takes the other's result, and where the op
// has an addend already, the op that makes this one and nothing else reads takes the new one. Where an elementwise op
// makes the other side and others alone read the sum, the sum is made among these, and neither side is written.

namespace plimsoll {
namespace {

// The op that could make a sum with `value`, past reshapes and ops that add what it makes, where nothing else reads
// these; None where there is none.
NodeId adder_behind(const Graph& graph, ValueId value) {
  for (;;) {
    value = past_reshapes(graph, value);
    const NodeId id = graph.value(value).producer;
    if (id == NodeId::None || !has_one_reader(graph, value)) return NodeId::None;
    const Node& node = graph.node(id);
    if (node.op->addend.empty() || node.results[0] != value) return NodeId::None;
    const ValueId addend = operand_of(node, node.op->addend);
    if (addend == ValueId::None) return id;
    value = addend;
  }
}

// The sum of `summand`, which the adder makes or other ops out of it, and `addend`.
bool fuse(Graph& graph, NodeOrder& order, NodeId sum, ValueId summand, NodeId adder, ValueId addend) {
  if (adder == NodeId::None || order.of(addend) >= order[adder]) return false;
  const Node& node = graph.node(adder);
  const ValueId result = graph.node(sum).results[0];
  const bool adds_itself = past_reshapes(graph, summand) == node.results[0];
  Builder b = builder_at(graph, adder);
  const ValueId shaped_addend = b.reshape(addend, graph.type(node.results[0]).shape);
  const llvm::SmallVector<ValueId, 4> operands = operands_with(node, node.op->addend, shaped_addend);
  const llvm::SmallVector<ValueId, 4> made = b.emit_all(node.op->name, operands, node.attrs);
  order.add(made[0], adder);
  for (size_t i = adds_itself ? 1 : 0; i < made.size(); ++i) replace_and_rename(graph, node.results[i], made[i]);
  ValueId shaped = summand;
  if (adds_itself) {
    shaped = b.reshape(made[0], graph.type(result).shape);
    order.add(shaped, adder);
  }
  replace_and_rename(graph, result, shaped);
  graph.erase_node(sum);
  return true;
}

// Another sum is no such reader, since an op may make that one.
bool is_between_elementwise(const Graph& graph, NodeId sum) {
  const Node& node = graph.node(sum);
  const ValueId result = node.results[0];
  const bool only_elementwise_reads = llvm::all_of(graph.value(result).users, [&](NodeId user) {
    const Node& reader = graph.node(user);
    return reader.op->name != "add" && fits_fused_body(graph, reader);
  });
  if (!only_elementwise_reads || leaves_graph(graph, result)) return false;
  return llvm::any_of(node.operands, [&](ValueId side) { return is_elementwise_for_one_reader(graph, side); });
}

bool try_sum(Graph& graph, NodeOrder& order, NodeId sum) {
  const ValueId a = graph.node(sum).operands[0], b = graph.node(sum).operands[1];
  if (graph.type(a) != graph.type(b) || is_between_elementwise(graph, sum)) return false;
  const NodeId first = adder_behind(graph, a), second = adder_behind(graph, b);
  return order[first] > order[second] ? fuse(graph, order, sum, a, first, b) : fuse(graph, order, sum, b, second, a);
}

Result<bool> run_fuse_addends(Graph& graph, PassContext& context) {
  NodeOrder order(graph);
  return apply_patterns(graph, context, {{"add", "sums", [&](Graph& g, NodeId id) { return try_sum(g, order, id); }}});
}

}  // namespace

constinit const PassInfo pass_fuse_addends{
    .name = "fuse-addends",
    .summary = "let matmuls and gradients that take an addend make the sum behind them",
    .run = run_fuse_addends,
};

}  // namespace plimsoll
