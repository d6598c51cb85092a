#include "passes/states_of_plan.h"

#include "ir/kept_copies.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

llvm::StringMap<OwnState> states_of_rank(const Plan& plan) {
  llvm::StringMap<OwnState> states;
  for (const Plan* stage : plan.stages())
    for (const PlanState& state : stage->states) {
      const Slot& slot = stage->slots[static_cast<size_t>(state.slot)];
      states.try_emplace(slot.name, OwnState{stage->model_type(state).shape, state.divisions});
    }
  return states;
}

StagesOfStates stages_of_states(const Plan& plan) {
  llvm::StringMap<int> stages_with;
  StagesOfStates owners;
  for (const Plan* stage : plan.stages())
    for (const PlanState& state : stage->states) {
      const std::string& name = stage->slots[static_cast<size_t>(state.slot)].name;
      ++stages_with[name];
      owners[name] = stage->stage;
    }
  for (const auto& state : stages_with)
    if (state.second > 1) owners.erase(state.first());
  return owners;
}

bool keeps_copies(const Plan& plan) {
  return llvm::any_of(plan.states, [](const PlanState& state) { return is_kept_copy(state.role, state.init); });
}

}  // namespace plimsoll
