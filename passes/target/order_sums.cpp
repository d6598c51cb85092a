#include "passes/rewrite/patterns.h"

// Two products make one sum: the second adds what the first has made. A product that adds reads as many bytes more as
// it writes. A long product hides that; a product with a short inner dimension, such as an adapter's, does little but
// write its result. So the product with less work goes first, and the other adds its result.
//
// It applies where nothing else reads the first product and this one adds nothing itself: otherwise one of the two
// reads an addend either way. Both stand at the later place then, where the operands of both are there. What is rounded
// between the two is the smaller summand.

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

Result<bool> run(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context,
                        {{"linear", "sums", [](Graph& g, NodeId id) { return try_swap(g, id); }},
                         {"linear_f8", "sums", [](Graph& g, NodeId id) { return try_swap(g, id); }}});
}

}  // namespace

constinit const PassInfo pass_order_sums{
    .name = "order-sums",
    .summary = "let the product with less work begin a sum of two, whose other product adds it",
    .run = run,
};

}  // namespace plimsoll
