#include "ir/depends_on_parameter.h"

#include <set>

namespace plimsoll {

bool depends_on_parameter(const Graph& graph, ValueId value) {
  std::set<ValueId> seen = {value};
  std::vector<ValueId> open = {value};
  while (!open.empty()) {
    ValueId at = open.back();
    open.pop_back();
    if (const State* state = graph.find_state(at); state && state->role == StateRole::Parameter) return true;
    if (graph.value(at).producer == NodeId::None || !is_float(graph.type(at).dtype)) continue;
    for (ValueId operand : graph.node(graph.value(at).producer).operands)
      if (operand != ValueId::None && seen.insert(operand).second) open.push_back(operand);
  }
  return false;
}

}  // namespace plimsoll
