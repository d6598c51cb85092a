#include "passes/rewrite/quantised_weights.h"

namespace plimsoll {

std::map<ValueId, ValueId> parts_of_quantised_weights(const Graph& graph) {
  std::map<ValueId, ValueId> parts;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!is_dequantize(node)) continue;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      ValueId value = node.operands[i];
      while (value != ValueId::None && !graph.find_state(value)) {
        const NodeId producer = graph.value(value).producer;
        const bool moved = producer != NodeId::None && graph.node(producer).op->only_moves();
        value = moved ? graph.node(producer).operands[0] : ValueId::None;
      }
      if (value != ValueId::None) parts.try_emplace(value, i == 0 ? node.results[0] : ValueId::None);
    }
  }
  return parts;
}

}  // namespace plimsoll
