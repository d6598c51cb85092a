#pragma once

// What smaller budgets cost: the rows of `compile --pareto`.

#include "ir/plan/plan.h"

#include "llvm/ADT/STLFunctionalExtras.h"

namespace plimsoll {

// About a dozen plans from `plain`, which takes least time, down to the one that needs least. Each is what `within`
// gives for the budget it records, a size that people can type. Each needs less than the one before and takes no less
// time.
Result<std::vector<Plan>> budget_frontier(const Plan& plain,
                                          llvm::function_ref<Result<Plan>(int64_t budget_bytes)> within);

}  // namespace plimsoll
