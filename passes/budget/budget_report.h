#pragma once

// Whether a plan is within its budget, and what to say when it is not.

#include "passes/job.h"

namespace plimsoll {

bool is_within_budget(const Plan& plan);

// The plan with another device budget recorded.
Plan with_budget(Plan plan, int64_t budget_bytes);

// What the plan promises at least, whatever layouts its functions have.
int64_t least_bytes(const Plan& plan);

bool is_within_host_budget(const Plan& plan);

// Orders two plans above a budget: one within the host budget comes first, then one with fewer device bytes.
bool needs_less(const Plan& a, const Plan& b);

// A plan within its budget is better than one that is not; of two within, the faster; of two above, the smaller.
bool is_better(const Plan& a, const Plan& b);

// Why a plan does not fit, in parts.
struct Shortfall {
  std::string needs;        // "needs 23.4 GiB (...), the budget is 22 GiB"
  std::string peak;         // where it is: "gelu_3 in train_step"
  std::string largest;      // the op that holds most by itself: "adamw that produces %w.next"
  int64_t least_bytes = 0;  // what that op, persistent values and the reserves need
  std::string enough;       // of a pipeline, budgets that would be enough; may be empty
  // There: persistent bytes by category, then the largest other values.
  std::vector<std::pair<std::string, int64_t>> alive_bytes;
};
Shortfall shortfall_of(const CompileResult& result);
// The same as one line.
std::string shortfall(const CompileResult& result);

// For callers to whom a job that does not fit is an error: Fault::Budget with the shortfall.
Result<Plan> fitting_plan(Result<CompileResult> result);

}  // namespace plimsoll
