#pragma once

// Lays a scheduled program out within its budget: as it is where that fits, with the least recompute where it does not.

#include "passes/lower_to_plan.h"

namespace plimsoll {

struct FitOptions {
  bool recompute = true;
  llvm::ArrayRef<std::vector<NodeId>> other_orders = {};  // per function, an order of its nodes to recompute in as well
  int64_t batch = 0;  // of the model's inputs, for the advice in an error; 0: they share none
  double search_seconds = 4;  // of work for each function that does not fit, see RecomputeOptions
};

// `input.repeats` is empty. A budget that cannot be met is an error that names the smallest one that can.
Result<Plan> fit_budget(const LoweringInput& input, const FitOptions& options = {});

}  // namespace plimsoll
