#pragma once

// Transposes of the codes of frozen weights (expand-f8), which a step makes or which are states.

#include "ir/graph.h"
#include "ir/plan/plan.h"

namespace plimsoll {

// Bytes of those that steps of the program make of codes that states hold.
int64_t bytes_of_made_transposes(const Program& program);

// Says what became of them. `made` are the bytes of all, and `plain` the plan without remats and copies whose steps
// make them.
Decision decide_transposes(const Plan& plan, int64_t made, const Plan& plain);

}  // namespace plimsoll
