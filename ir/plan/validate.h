#pragma once

// Checks a plan from anywhere first: every index names something and every number is possible, so that the rest of the
// program may follow them. check.h checks what the plan means.

#include "ir/plan/plan.h"

namespace plimsoll {

Status validate_plan(const Plan& plan);

}  // namespace plimsoll
