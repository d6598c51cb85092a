#include "passes/budget/offload_level_search.h"

// What no plan of an offload level undercuts, by time within some bytes.

#include <algorithm>
#include <limits>

namespace plimsoll {
namespace {

// What computing loses to the copies of states.
double lost_to_states_us(const RematProblem& problem) {
  double us = 0;
  for (const RematOp& op : problem.ops)
    if (is_copy(op.engine)) us += problem.compute_us(op);
  return us;
}

}  // namespace

// What all calls of the function take of a step at least.
double OffloadLevelSearch::min_us_of(size_t function) const {
  double us = std::numeric_limits<double>::infinity();
  for (const OrderVariant& order : functions_[function].orders) us = std::min(us, order.min_us);
  return calls_of(function) * us;
}

// No plan of this order that has at most so many transient bytes adds less to its compute.
double OffloadLevelSearch::min_added_us_within(const OrderVariant& order, int64_t allowance) {
  const RematProblem& problem = order.sequence.problem;
  if (!has_copies(problem) && problem.offloads.empty()) return min_added_us(problem, allowance);
  return lost_to_states_us(problem) + PeakBound(problem).min_added_us(allowance, order.host_room);
}

// No plan of a group that is within the allowance takes less time.
double OffloadLevelSearch::min_us_of_group(const OrderVariant& order, GroupedPlans& plans, size_t group) const {
  const SearchedGroups& groups = *plans.groups;
  const RematProblem& problem = order.sequence.problem;
  if (!plans.bound_us)
    plans.bound_us = std::make_shared<const PeakBound>(order.from_source ? order.from_source->at_least(groups.problem())
                                                                         : groups.problem());
  const int64_t limit = std::min(allowance_, groups.highest_bytes(group));
  const double added_us =
      order.from_source ? plans.bound_us->min_added_us(limit) : plans.bound_us->min_added_us(limit, order.host_room);
  return std::max(order.min_us, compute_us(problem) + lost_to_states_us(problem) + added_us);
}

double OffloadLevelSearch::min_us_within(int64_t budget_bytes) const {
  double us = 0;
  for (size_t f = 0; f < functions_.size(); ++f) {
    double least_us = std::numeric_limits<double>::infinity();
    for (const OrderVariant& order : functions_[f].orders) {
      const double us_within = compute_us(order.sequence.problem) + min_added_us_within(order, allowance(budget_bytes));
      least_us = std::min(least_us, std::max(order.min_us, us_within));
    }
    us += calls_of(f) * least_us;
  }
  return us;
}

}  // namespace plimsoll
