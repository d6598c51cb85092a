#include "passes/match.h"
#include "passes/pass.h"

#include <algorithm>

// A sum with a linear layer's result, or with its weight gradient, is made by the product itself, which takes an addend:
// residual connections, gradients that several layers send to one value, and weight gradients over micro-batches, which
// thus go straight into their accumulators. One pass over memory less, and one rounding less.
//
// Applies where nothing else reads the product's result, and both sides have the sum's type. Views between the product
// and the sum move behind it. A product has one addend; of two that meet the later one takes it.

namespace plimsoll {
namespace {

// The operand that a product of this op adds; 0 for other ops.
size_t addend_of(const Node& node) {
  if (node.op->name == "linear") return 3;
  return node.op->name == "linear_dw" ? 2 : 0;
}

// The product without an addend behind `value`, past reshapes that nothing else reads; None where there is none.
NodeId product_behind(const Graph& graph, ValueId value) {
  while (made_by(graph, value, "reshape") && has_one_reader(graph, value))
    value = graph.node(graph.value(value).producer).operands[0];
  const NodeId id = graph.value(value).producer;
  if (id == NodeId::None || !has_one_reader(graph, value)) return NodeId::None;
  const Node& node = graph.node(id);
  const size_t addend = addend_of(node);
  const bool is_free = addend > 0 && (node.operands.size() <= addend || node.operands[addend] == ValueId::None);
  return is_free ? id : NodeId::None;
}

class Adder {
 public:
  explicit Adder(Graph& graph) : graph_(graph), place_(graph.node_slots(), -1) {
    const std::vector<NodeId> order = graph.order();
    for (size_t i = 0; i < order.size(); ++i) place_[index_of(order[i])] = static_cast<int64_t>(i);
  }

  bool try_sum(NodeId sum) {
    const Node& node = graph_.node(sum);
    const ValueId a = node.operands[0], b = node.operands[1];
    if (graph_.type(a) != graph_.type(b)) return false;
    const NodeId first = product_behind(graph_, a), second = product_behind(graph_, b);
    if (place_of(first) < 0 && place_of(second) < 0) return false;
    place_of(first) > place_of(second) ? make(sum, first, b) : make(sum, second, a);
    return true;
  }

 private:
  int64_t place_of(NodeId id) const { return id == NodeId::None ? -1 : place_[index_of(id)]; }

  void make(NodeId sum, NodeId product, ValueId addend) {
    const Node node = graph_.node(product);  // a copy: emitting moves nodes
    const ValueId result = graph_.node(sum).results[0];
    const Shape shape = graph_.type(result).shape;
    Builder b = builder_at(graph_, sum);
    llvm::SmallVector<ValueId, 4> operands = node.operands;
    operands.resize(addend_of(node) + 1, ValueId::None);
    operands[addend_of(node)] = b.reshape(addend, graph_.type(node.results[0]).shape);
    b.origin = node.origin;
    const ValueId made = b.emit(node.op->name, operands, node.attrs);
    place_.resize(graph_.node_slots(), -1);
    place_[index_of(graph_.value(made).producer)] = place_of(sum);
    replace_and_rename(graph_, result, b.reshape(made, shape));
    graph_.erase_node(sum);
  }

  Graph& graph_;
  std::vector<int64_t> place_;  // of a node in the graph's order
};

Result<bool> run(Graph& graph, PassContext& context) {
  Adder adder(graph);
  int64_t sums = 0;
  for (NodeId id : graph.order())
    if (graph.node(id).op->name == "add") sums += adder.try_sum(id);
  context.count("sums", sums);
  return sums > 0;
}

}  // namespace

extern const PassInfo pass_add_into_products;
constinit const PassInfo pass_add_into_products{
    .name = "add-into-products",
    .summary = "sums with products are made by the products",
    .stage = Stage::Any,
    .keeps_result = true,
    .run = run,
};

}  // namespace plimsoll
