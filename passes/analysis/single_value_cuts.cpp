#include "passes/analysis/single_value_cuts.h"

#include "passes/analysis/dependence.h"

namespace plimsoll {

std::vector<SingleValueCut> find_single_value_cuts(const Graph& graph) {
  const ParameterValues parameters(graph);
  const std::vector<bool> needed = find_needed(graph);
  std::vector<NodeId> order = graph.order();
  llvm::erase_if(order, [&](NodeId id) { return !needed[index_of(id)]; });
  std::vector<int64_t> readers_left(graph.value_count(), 0);
  for (NodeId id : order)
    for (ValueId operand : graph.node(id).operands)
      if (operand != ValueId::None) ++readers_left[index_of(operand)];

  std::vector<SingleValueCut> cuts;
  llvm::SmallVector<ValueId, 8> alive;  // with a gradient, and read later on
  for (NodeId id : order) {
    const Node& node = graph.node(id);
    for (ValueId operand : node.operands)
      if (operand != ValueId::None && --readers_left[index_of(operand)] == 0)
        llvm::erase_if(alive, [&](ValueId value) { return value == operand; });
    for (ValueId result : node.results)
      if (parameters.trained[index_of(result)] && !parameters.alone[index_of(result)] &&
          readers_left[index_of(result)] > 0)
        alive.push_back(result);
    if (alive.size() == 1 && graph.type(alive[0]).rank() > 0 && (cuts.empty() || cuts.back().value != alive[0]))
      cuts.push_back({alive[0], id});
  }
  return cuts;
}

}  // namespace plimsoll
