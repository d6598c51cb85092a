#include "passes/analysis/aliasing.h"

namespace plimsoll {

bool is_instruction(const Node& node) { return !node.op->is_view() && node.op->name != "constant"; }

std::vector<NodeId> instructions_of(const Graph& graph) {
  std::vector<NodeId> result = graph.order();
  llvm::erase_if(result, [&](NodeId id) { return !is_instruction(graph.node(id)); });
  return result;
}

ValueId root_of(const Graph& graph, ValueId value) {
  for (;;) {
    NodeId producer = graph.value(value).producer;
    if (producer == NodeId::None) return value;
    const Node& node = graph.node(producer);
    if (!node.op->is_view()) return value;
    value = operand_of(node, node.op->view_of);
  }
}

llvm::SmallVector<NodeId, 4> readers_of(const Graph& graph, ValueId value) {
  llvm::SmallVector<NodeId, 4> readers;
  for (NodeId user : graph.value(value).users) {
    const Node& node = graph.node(user);
    if (!node.op->is_view()) {
      readers.push_back(user);
      continue;
    }
    llvm::SmallVector<NodeId, 4> behind = readers_of(graph, node.results[0]);
    readers.append(behind.begin(), behind.end());
  }
  return readers;
}

llvm::SmallVector<InPlacePair, 2> in_place_pairs(const Graph& graph, const Node& node) {
  llvm::SmallVector<InPlacePair, 2> pairs;
  for (const InPlace& allowed : node.op->in_place_pairs()) {
    if (!allowed.applies_to(node)) continue;
    const auto over = static_cast<size_t>(allowed.operand);
    const ValueId result = node.results[allowed.result];
    const ValueId root = root_of(graph, node.operands[over]);
    bool read_besides = false;
    for (size_t i = 0; i < node.operands.size(); ++i)
      read_besides |= i != over && node.operands[i] != ValueId::None && root_of(graph, node.operands[i]) == root;
    if (!read_besides && graph.type(root).bytes() == graph.type(result).bytes()) pairs.push_back({result, root});
  }
  return pairs;
}

}  // namespace plimsoll
