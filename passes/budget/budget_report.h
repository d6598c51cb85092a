#pragma once

// Whether a plan is within its budget, and what to say when it is not.

#include "passes/job.h"

namespace plimsoll {

bool is_within_budget(const Plan& plan);

// The plan with another device budget recorded.
Plan with_budget(Plan plan, int64_t budget_bytes);

bool is_within_host_budget(const Plan& plan);

// Orders two plans above a budget: one within the host budget comes first, then one with fewer device bytes.
bool needs_less(const Plan& a, const Plan& b);

// A plan within its budget is better than one that is not; of two within, the faster; of two above, the smaller.
bool is_better(const Plan& a, const Plan& b);

// Why the result's plan does not fit: what it needs, where its peak is and what is alive there.
std::string shortfall(const CompileResult& result);

// For callers to whom a job that does not fit is an error: Fault::Budget with the shortfall.
Result<Plan> fitting_plan(Result<CompileResult> result);

}  // namespace plimsoll
