#include "passes/analysis/dependence.h"

#include "ir/awaited.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

bool any_in(llvm::ArrayRef<ValueId> values, const std::vector<bool>& set) {
  return llvm::any_of(values, [&](ValueId value) { return value != ValueId::None && set[index_of(value)]; });
}

std::vector<bool> find_dependent(const Graph& graph, llvm::ArrayRef<ValueId> sources) {
  std::vector<bool> dependent(graph.value_count(), false);
  for (ValueId value : sources) dependent[index_of(value)] = true;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    const Node& node = graph.node(id);
    if (node.op->gradient.kind() == Gradient::Kind::Zero || !any_in(node.operands, dependent)) continue;
    for (ValueId result : node.results) dependent[index_of(result)] = is_float(graph.type(result).dtype);
  }
  return dependent;
}

std::vector<bool> find_contributing(const Graph& graph, llvm::ArrayRef<ValueId> sinks, Flow flow) {
  std::vector<bool> contributes(graph.value_count(), false);
  for (ValueId value : sinks) contributes[index_of(value)] = true;
  for (NodeId id = graph.last_node(); id != NodeId::None; id = graph.node(id).previous) {
    const Node& node = graph.node(id);
    if (flow == Flow::Gradient && node.op->gradient.kind() == Gradient::Kind::Zero) continue;
    if (!any_in(node.results, contributes)) continue;
    for (ValueId operand : node.operands)
      if (operand != ValueId::None) contributes[index_of(operand)] = true;
  }
  return contributes;
}

std::vector<bool> find_needed(const Graph& graph) {
  llvm::SmallVector<ValueId, 16> sinks;
  for (const Output& output : graph.outputs) sinks.push_back(output.value);
  for (const Update& update : graph.updates) sinks.push_back(update.value);
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id))
    if (is_awaited(graph.node(id))) sinks.push_back(graph.node(id).results.front());
  const std::vector<bool> contributes = find_contributing(graph, sinks, Flow::Data);
  std::vector<bool> needed(graph.node_slots(), false);
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id))
    needed[index_of(id)] = any_in(graph.node(id).results, contributes);
  return needed;
}

ParameterValues::ParameterValues(const Graph& graph) : alone(graph.value_count(), false) {
  llvm::SmallVector<ValueId, 16> trained_states;
  for (const State& state : graph.states) {
    alone[index_of(state.value)] = true;
    if (state.trained) trained_states.push_back(state.value);
  }
  trained = find_dependent(graph, trained_states);
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    const Node& node = graph.node(id);
    const bool from_states = llvm::all_of(
        node.operands, [&](ValueId operand) { return operand == ValueId::None || alone[index_of(operand)]; });
    for (ValueId result : node.results) alone[index_of(result)] = from_states;
  }
}

}  // namespace plimsoll
