#pragma once

// Whether a plan is within its budget, and what to say when it is not.

#include "ir/plan/plan.h"

namespace plimsoll {

bool is_within_budget(const Plan& plan);
bool is_within_host_budget(const Plan& plan);

// Of two plans that are above a budget: what keeps to the host's comes first, then what needs less of the device.
bool needs_less(const Plan& a, const Plan& b);

// What is within its budget comes before what is not; of two that are the faster, of two that are not the one that
// needs less.
bool is_better(const Plan& a, const Plan& b);

// `smallest`, the plan of this job that needs least, is above its budget: what it needs, where its peak is and what is
// alive there. Of the host it may have `host_budget_bytes`; 0: all it wants.
Status over_budget(const Plan& smallest, int64_t host_budget_bytes);

}  // namespace plimsoll
