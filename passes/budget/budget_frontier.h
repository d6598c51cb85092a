#pragma once

#include "ir/plan/plan.h"
#include "ir/support/status.h"

#include "llvm/ADT/STLFunctionalExtras.h"

namespace plimsoll {

// Gives about a dozen plans from `plain`, which takes least time, down to the one that needs least: the rows of
// `compile --pareto`. Each is what `within` gives for the budget it records, a size that people can type. Each needs
// less than the one before and takes no less time.
Result<std::vector<Plan>> budget_frontier(const Plan& plain,
                                          llvm::function_ref<Result<Plan>(int64_t budget_bytes)> within);

}  // namespace plimsoll
