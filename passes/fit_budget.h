#pragma once

// Lays a scheduled program out within its budget: as it is where that fits, and where it does not, with what costs least of
// repeating instructions, letting values wait on the host, and keeping states there.

#include "passes/lower_to_plan.h"

#include <functional>

namespace plimsoll {

struct FitOptions {
  bool recompute = true;
  bool offload = true;  // where the device has memory of its own
  llvm::ArrayRef<std::vector<NodeId>> other_orders = {};  // per function, an order of its nodes to recompute in as well
  TrainingSummary training = {};  // recorded in the plan; its batch and accumulation are in the advice of an error
  double search_seconds = 4;      // of work for each function that does not fit, see RecomputeOptions
  std::function<void(const Plan&)> on_refused = {};  // sees the plan that needs least where even that is above the budget
};

// The plan without repeats or copies, within the budget or not.
Result<Plan> plain_plan(const LoweringInput& input, const FitOptions& options);

// `input.repeats` is empty. A budget that cannot be met is an error that names the smallest one that can.
Result<Plan> fit_budget(const LoweringInput& input, const FitOptions& options = {});

// About a dozen plans from the plain one down to the one that needs least, each what fit_budget gives for the budget it records: a
// size that people can type. Each needs less than the one before and takes no less time. `input.budget_bytes` plays no part.
Status budget_front(const LoweringInput& input, const FitOptions& options, llvm::function_ref<void(const Plan&)> visit);

}  // namespace plimsoll
