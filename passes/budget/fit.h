#pragma once

// Lays a scheduled program out within its budget: as it is where that fits, and where it does not, with what costs
// least of repeating instructions, letting values wait on the host, and keeping states there.

#include "passes/lower_to_plan.h"

#include <functional>
#include <memory>

namespace plimsoll {

struct FitOptions {
  bool recompute = true;
  bool offload = true;                                    // where the device has memory of its own
  llvm::ArrayRef<std::vector<NodeId>> other_orders = {};  // per function, an order of its nodes to recompute in as well
  TrainingSummary training = {};  // recorded in the plan; its batch and accumulation are in the advice of an error
  double min_share = 0;           // of what is live at the plain peak beside states: what is searched for needs no less
  double search_seconds = 4;      // of work for each function that does not fit, see RematOptions
  std::function<void(const Plan&)> on_refused =
      {};  // sees the plan that needs least where even that is above the budget
};

// The plan without remats or copies, within the budget or not.
Result<Plan> plain_plan(const LoweringInput& input, const FitOptions& options);

// `input.remats` is empty. A budget that cannot be met is an error that names the smallest one that can.
Result<Plan> fit_budget(const LoweringInput& input, const FitOptions& options = {});

// The plans of one program under one budget after the other; what was searched for one serves the next.
class BudgetFitter {
 public:
  // `input` and `options` outlive it; `plain` is their plain_plan. Budgets up to `highest_budget` may be asked for.
  BudgetFitter(const LoweringInput& input, const FitOptions& options, Plan plain, int64_t highest_budget);
  ~BudgetFitter();

  const Plan& plain() const;
  // The fastest plan within the budget; where there is none, the one that needs least.
  Result<Plan> within(int64_t budget_bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// About a dozen plans from `plain`, which takes least time, down to the one that needs least, each what `within` gives
// for the budget it records: a size that people can type. Each needs less than the one before and takes no less time.
Status budget_frontier(Plan plain, llvm::function_ref<Result<Plan>(int64_t budget_bytes)> within,
                       llvm::function_ref<void(const Plan&)> visit);

}  // namespace plimsoll
