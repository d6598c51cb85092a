#pragma once

// Whether a plan is within its budget, and what to say when it is not.

#include "passes/job.h"

namespace plimsoll {

bool is_within_budget(const Plan& plan);

// The plan with another device budget recorded.
Plan with_budget(Plan plan, int64_t budget_bytes);

bool is_within_host_budget(const Plan& plan);

// Of two plans that are above a budget: what keeps to the host's comes first, then what needs less of the device.
bool needs_less(const Plan& a, const Plan& b);

// What is within its budget comes before what is not; of two that are the faster, of two that are not the one that
// needs less.
bool is_better(const Plan& a, const Plan& b);

// Why the result's plan does not fit: what it needs, where its peak is and what is alive there.
std::string shortfall(const CompileResult& result);

// For callers to whom a job that does not fit is an error: Fault::Budget with the shortfall.
Result<Plan> fitting_plan(Result<CompileResult> result);

}  // namespace plimsoll
