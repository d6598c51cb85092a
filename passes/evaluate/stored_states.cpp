#include "passes/evaluate/stored_states.h"

#include "ir/builder.h"
#include "ir/channels_last_weight.h"

namespace plimsoll {

std::optional<StoredState> find_stored_state(const Plan& plan, llvm::StringRef name) {
  for (const Plan* stage : plan.stages())
    for (const PlanState& state : stage->states)
      if (const Slot& slot = stage->slots[static_cast<size_t>(state.slot)]; slot.name == name)
        return StoredState{slot.type, stage->model_type(state), state.channels_last};
  return std::nullopt;
}

bool read_as_stored(Graph& graph, const Plan& plan) {
  bool has_turned = false;
  for (State& state : graph.states) {
    const std::optional<StoredState> stored = find_stored_state(plan, graph.value(state.value).name);
    if (!stored || !stored->channels_last) continue;
    has_turned = state.channels_last = true;
    const llvm::SmallVector<NodeId, 2> users(graph.value(state.value).users.begin(),
                                             graph.value(state.value).users.end());
    graph.set_type(state.value, stored->type);
    Builder b(graph, graph.first_node());
    const ValueId weight =
        b.emit("transpose", {state.value}, {{"perm", to_channels_second(stored->type.shape.size())}});
    for (NodeId user : users)
      for (size_t i = 0; i < graph.node(user).operands.size(); ++i)
        if (graph.node(user).operands[i] == state.value) graph.set_operand(user, i, weight);
  }
  return has_turned;
}

}  // namespace plimsoll
