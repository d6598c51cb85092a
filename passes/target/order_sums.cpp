#include "passes/rewrite/patterns.h"

// Two products make one sum: the second adds what the first has made. A product that adds reads as many bytes more as
// it writes. A long product hides that; a product with a short inner dimension, such as an adapter's, does little but
// write its result. So the product with less work goes first, and the other adds its result.
//
// It applies where nothing else reads the first product and this one adds nothing itself: otherwise one of the two
// reads an addend either way. Both stand at the later place then, where the operands of both are there. What is rounded
// between the two is the smaller summand.
//
// Where elementwise ops make several summands of a sum of products, such as the dropped out gradients of adapters on
// one operand, they are added first, which is one elementwise op, and the first product adds their sum.

namespace plimsoll {
namespace {

constexpr double min_ratio = 16;  // of the work: below it the second product hides its addend as well

bool is_product_with_addend(const Node& node) {
  return node.op->precision == Precision::Low && !node.op->addend.empty() && node.results.size() == 1;
}

llvm::SmallVector<ValueId, 4> without_addend(const Node& node) {
  llvm::SmallVector<ValueId, 4> operands = operands_with(node, node.op->addend, ValueId::None);
  while (operands.back() == ValueId::None) operands.pop_back();
  return operands;
}

bool try_swap(Graph& graph, NodeId id) {
  const Node second = graph.node(id);
  if (!is_product_with_addend(second)) return false;
  const ValueId addend = operand_of(second, second.op->addend);
  if (addend == ValueId::None || !has_one_reader(graph, addend)) return false;
  const ValueId made = past_reshapes(graph, addend);
  const NodeId producer = graph.value(made).producer;
  if (producer == NodeId::None || !has_one_reader(graph, made)) return false;
  const Node first = graph.node(producer);
  if (!is_product_with_addend(first) || operand_of(first, first.op->addend) != ValueId::None) return false;
  if (flops_of(graph, first) < min_ratio * flops_of(graph, second)) return false;
  Builder b = builder_at(graph, id);
  const ValueId small = b.emit(second.op->name, without_addend(second), second.attrs);
  b.origin = first.origin;
  const ValueId shaped = b.reshape(small, graph.type(made).shape);
  const ValueId sum = b.emit(first.op->name, operands_with(first, first.op->addend, shaped), first.attrs);
  const ValueId result = b.reshape(sum, graph.type(second.results[0]).shape);
  const std::string name = graph.value(second.results[0]).name;
  replace_and_rename(graph, second.results[0], result);
  graph.rename(small, name + ".summand");
  graph.erase_node(id);
  return true;
}

// Products, each of which adds what the one behind it in the list makes; the last adds something else.
std::vector<NodeId> chain_of_sums(const Graph& graph, ValueId value) {
  std::vector<NodeId> chain;
  while (has_one_reader(graph, value)) {
    const NodeId producer = graph.value(value).producer;
    if (producer == NodeId::None || !is_product_with_addend(graph.node(producer))) break;
    const Node& product = graph.node(producer);
    value = operand_of(product, product.op->addend);
    if (value == ValueId::None) break;
    chain.push_back(producer);
  }
  return chain;
}

bool try_sink(Graph& graph, NodeId id) {
  const Node sum = graph.node(id);
  for (const auto& [small, large] : {std::pair(0, 1), std::pair(1, 0)}) {
    const ValueId summand = sum.operands[static_cast<size_t>(small)];
    if (!is_elementwise_for_one_reader(graph, summand)) continue;
    const std::vector<NodeId> chain = chain_of_sums(graph, sum.operands[static_cast<size_t>(large)]);
    if (chain.empty()) continue;
    const Node& last = graph.node(chain.back());
    const ValueId other = operand_of(last, last.op->addend);
    if (!is_elementwise_for_one_reader(graph, other) || graph.type(other) != graph.type(summand)) continue;
    if (graph.type(sum.results[0]) != graph.type(summand)) continue;
    Builder b = builder_at(graph, id);
    ValueId made = b.emit("add", {summand, other});
    for (NodeId product : llvm::reverse(chain)) {
      const Node node = graph.node(product);
      b.origin = node.origin;
      made = b.emit(node.op->name, operands_with(node, node.op->addend, made), node.attrs);
    }
    replace_and_rename(graph, sum.results[0], made);
    return true;
  }
  return false;
}

Result<bool> run_order_sums(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context,
                        {{"add", "sums", [](Graph& g, NodeId id) { return try_sink(g, id); }},
                         {"linear", "sums", [](Graph& g, NodeId id) { return try_swap(g, id); }},
                         {"linear_f8", "sums", [](Graph& g, NodeId id) { return try_swap(g, id); }}});
}

}  // namespace

constinit const PassInfo pass_order_sums{
    .name = "order-sums",
    .summary = "let the product with less work begin a sum of two, and elementwise summands a sum of products",
    .run = run_order_sums,
};

}  // namespace plimsoll
