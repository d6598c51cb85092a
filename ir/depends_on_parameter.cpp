#include "ir/depends_on_parameter.h"

#include "llvm/ADT/STLExtras.h"

#include <set>

namespace plimsoll {
namespace {

// Visits parameters behind a value until a visit returns true; false where none does.
bool visit_parameters(const Graph& graph, ValueId value, llvm::function_ref<bool(const State&)> visit) {
  std::set<ValueId> seen = {value};
  std::vector<ValueId> open = {value};
  while (!open.empty()) {
    ValueId at = open.back();
    open.pop_back();
    if (const State* state = graph.find_state(at); state && state->role == StateRole::Parameter && visit(*state))
      return true;
    if (graph.value(at).producer == NodeId::None || !is_float(graph.type(at).dtype)) continue;
    for (ValueId operand : graph.node(graph.value(at).producer).operands)
      if (operand != ValueId::None && seen.insert(operand).second) open.push_back(operand);
  }
  return false;
}

}  // namespace

bool depends_on_parameter(const Graph& graph, ValueId value) {
  return visit_parameters(graph, value, [](const State&) { return true; });
}

std::vector<ValueId> trained_parameters_behind(const Graph& graph, ValueId value) {
  std::vector<ValueId> parameters;
  visit_parameters(graph, value, [&](const State& state) {
    if (state.trained) parameters.push_back(state.value);
    return false;
  });
  return parameters;
}

}  // namespace plimsoll
