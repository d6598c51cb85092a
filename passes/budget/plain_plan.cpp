#include "passes/budget/plain_plan.h"

#include "passes/budget/budget_report.h"

namespace plimsoll {

const Plan& PlainPlan::plan() const {
  if (!search_) return first_;
  std::call_once(is_searched_, [&] { searched_ = search_(); });
  return *searched_;
}

int64_t PlainPlan::min_bytes() const { return search_ ? least_bytes(first_) : first_.promised_bytes(); }

}  // namespace plimsoll
