#include "passes/train/batch_cuts.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

std::vector<bool> find_needed(const Graph& graph) {
  std::vector<bool> needed(graph.node_slots(), false);
  auto mark = [&](ValueId value) {
    if (value != ValueId::None && graph.value(value).producer != NodeId::None)
      needed[index_of(graph.value(value).producer)] = true;
  };
  for (const Output& output : graph.outputs) mark(output.value);
  for (const Update& update : graph.updates) mark(update.value);
  for (NodeId id = graph.last_node(); id != NodeId::None; id = graph.node(id).previous)
    if (needed[index_of(id)])
      for (ValueId operand : graph.node(id).operands) mark(operand);
  return needed;
}

ParameterValues::ParameterValues(const Graph& graph) : alone(graph.value_count(), false), trained(alone) {
  for (const State& state : graph.states) {
    alone[index_of(state.value)] = true;
    trained[index_of(state.value)] = state.trained;
  }
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    const Node& node = graph.node(id);
    const auto is_alone = [&](ValueId operand) { return operand == ValueId::None || alone[index_of(operand)]; };
    const auto is_trained = [&](ValueId operand) { return operand != ValueId::None && trained[index_of(operand)]; };
    const bool from_states = llvm::all_of(node.operands, is_alone);
    const bool has_way = node.op->gradient.kind() != Gradient::Kind::Zero && llvm::any_of(node.operands, is_trained);
    for (ValueId result : node.results) {
      alone[index_of(result)] = from_states;
      trained[index_of(result)] = has_way && is_float(graph.type(result).dtype);
    }
  }
}

std::vector<ValueId> find_single_value_cuts(const Graph& graph) {
  const ParameterValues parameters(graph);
  const std::vector<bool> needed = find_needed(graph);
  std::vector<NodeId> order = graph.order();
  llvm::erase_if(order, [&](NodeId id) { return !needed[index_of(id)]; });
  std::vector<int64_t> readers_left(graph.value_count(), 0);
  for (NodeId id : order)
    for (ValueId operand : graph.node(id).operands)
      if (operand != ValueId::None) ++readers_left[index_of(operand)];

  std::vector<ValueId> narrow;
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
    if (alive.size() == 1 && graph.type(alive[0]).rank() > 0 && (narrow.empty() || narrow.back() != alive[0]))
      narrow.push_back(alive[0]);
  }
  return narrow;
}

}  // namespace plimsoll
