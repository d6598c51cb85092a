#pragma once

// Whether a plan is within its budget, and what to say when it is not.

#include "ir/plan/plan.h"

namespace plimsoll {

bool is_within_budget(const Plan& plan);

// `smallest`, the plan of this job that needs least, is above its budget: what it needs, where its peak is and what is alive there.
Status over_budget(const Plan& smallest);

}  // namespace plimsoll
