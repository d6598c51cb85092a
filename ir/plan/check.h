#pragma once

// The independent checker proves the rules at the top of plan.h for one plan. It follows who wrote each range of bytes
// last, shares no code with any planner and believes none of the plan's own claims.

#include "ir/plan/plan.h"

namespace plimsoll {

// A failure is a bug of the planner or a damaged file; it names the instruction, the slots and the bytes.
Status check_plan(const Plan& plan);

}  // namespace plimsoll
