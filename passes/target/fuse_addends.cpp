#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

#include <algorithm>

// A sum with the result of an op that takes an addend (OpDef::addend) is made by that op: residual connections and
// their gradients, gradients that several layers send to one value, and weight gradients over micro-batches, which thus
// go straight into their accumulators. One pass over memory less, and one rounding less.
//
// Applies where nothing else reads the result, both sides have the sum's type, and the other side is there before the
// op: no op moves, since its operands would have to wait with it. Views between the op and the sum move behind it. An
// op has one addend; of two that meet, the later one takes the other's result.

namespace plimsoll {
namespace {

// The op that could add to `value`, past reshapes that nothing else reads; None where there is none.
NodeId adder_behind(const Graph& graph, ValueId value) {
  while (made_by(graph, value, "reshape") && has_one_reader(graph, value))
    value = graph.node(graph.value(value).producer).operands[0];
  const NodeId id = graph.value(value).producer;
  if (id == NodeId::None || !has_one_reader(graph, value)) return NodeId::None;
  const Node& node = graph.node(id);
  const auto addend = static_cast<size_t>(node.op->addend);
  const bool is_free =
      node.op->addend >= 0 && (node.operands.size() <= addend || node.operands[addend] == ValueId::None);
  return is_free && node.results[0] == value ? id : NodeId::None;
}

class Absorber {
 public:
  explicit Absorber(Graph& graph) : graph_(graph) {
    for (NodeId id : graph.order()) set_place(id, next_place_++);
  }

  bool try_sum(NodeId sum) {
    const Node& node = graph_.node(sum);
    const ValueId a = node.operands[0], b = node.operands[1];
    if (graph_.type(a) != graph_.type(b)) return false;
    const NodeId first = adder_behind(graph_, a), second = adder_behind(graph_, b);
    return place_of(first) > place_of(second) ? absorb(sum, first, b) : absorb(sum, second, a);
  }

 private:
  int64_t place_of(NodeId id) const { return id == NodeId::None ? -1 : place_[index_of(id)]; }
  void set_place(NodeId id, int64_t place) {
    place_.resize(std::max(place_.size(), graph_.node_slots()), -1);
    place_[index_of(id)] = place;
  }

  bool absorb(NodeId sum, NodeId adder, ValueId addend) {
    if (adder == NodeId::None || place_of(graph_.value(addend).producer) >= place_of(adder)) return false;
    const Node node = graph_.node(adder);  // a copy: emitting moves nodes
    const ValueId result = graph_.node(sum).results[0];
    const Shape shape = graph_.type(result).shape;
    Builder b = builder_at(graph_, adder);
    llvm::SmallVector<ValueId, 6> operands(node.operands.begin(), node.operands.end());
    const auto at = static_cast<size_t>(node.op->addend);
    operands.resize(std::max(operands.size(), at + 1), ValueId::None);
    operands[at] = b.reshape(addend, graph_.type(node.results[0]).shape);
    const llvm::SmallVector<ValueId, 4> made = b.emit_all(node.op->name, operands, node.attrs);
    set_place(graph_.value(made[0]).producer, place_of(adder));
    for (size_t i = 1; i < made.size(); ++i) replace_and_rename(graph_, node.results[i], made[i]);
    const ValueId shaped = b.reshape(made[0], shape);
    set_place(graph_.value(shaped).producer, place_of(adder));
    replace_and_rename(graph_, result, shaped);
    graph_.erase_node(sum);
    return true;
  }

  Graph& graph_;
  std::vector<int64_t> place_;  // of a node in the graph's order
  int64_t next_place_ = 0;
};

Result<bool> run(Graph& graph, PassContext& context) {
  Absorber absorber(graph);
  int64_t sums = 0;
  for (NodeId id : graph.order())
    if (graph.node(id).op->name == "add") sums += absorber.try_sum(id);
  context.count("sums", sums);
  return sums > 0;
}

}  // namespace

extern const PassInfo pass_fuse_addends;
constinit const PassInfo pass_fuse_addends{
    .name = "fuse-addends",
    .summary = "sums are made by the products and gradients that take an addend",
    .stage = Stage::Any,
    .keeps_result = true,
    .run = run,
};

}  // namespace plimsoll
