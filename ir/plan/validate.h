#pragma once

// The first look at a plan from anywhere: that every index names something and every number is possible, so
// that the rest of the program may follow them without looking. What the plan means is check.h's business.

#include "ir/plan/plan.h"

namespace plimsoll {

Status validate_plan(const Plan& plan);

}  // namespace plimsoll
