#pragma once

// What a finished plan has decided of its states, for functions that are added to it.

#include "ir/plan/plan.h"
#include "passes/partition/divide_as_planned.h"
#include "passes/partition/stages_as_planned.h"

namespace plimsoll {

// What one rank has of each state, of all stages.
llvm::StringMap<OwnState> states_of_rank(const Plan& plan);
StagesOfStates stages_of_states(const Plan& plan);
// Whether 16-bit copies of parameters are states.
bool keeps_copies(const Plan& plan);

}  // namespace plimsoll
