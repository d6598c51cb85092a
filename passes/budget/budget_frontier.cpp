#include "passes/budget/budget_frontier.h"

#include "ir/support/units.h"
#include "passes/budget/budget_report.h"

#include <utility>

namespace plimsoll {
namespace {

constexpr int rows = 12;

}  // namespace

Result<std::vector<Plan>> budget_frontier(const Plan& plain,
                                          llvm::function_ref<Result<Plan>(int64_t budget_bytes)> within) {
  const int64_t most = plain.promised_bytes();
  Result<Plan> floor = within(1);
  if (!floor) return floor.takeError();
  const int64_t least = floor->promised_bytes();
  std::vector<Plan> plans{with_budget(plain, round_up_readable(most))};
  for (int row = 1; row < rows; ++row) {
    Result<Plan> plan = within(round_up_readable(most - (most - least) * row / (rows - 1)));
    if (!plan) return plan.takeError();
    if (!is_within_budget(*plan) || plan->promised_bytes() > plans.back().promised_bytes()) continue;
    // A plan that serves a smaller budget too is listed for the smallest one.
    if (plan->promised_bytes() == plans.back().promised_bytes()) plans.pop_back();
    plans.push_back(std::move(*plan));
  }
  return plans;
}

}  // namespace plimsoll
