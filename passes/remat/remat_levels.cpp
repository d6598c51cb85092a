#include "ir/support/search_effort.h"
#include "passes/remat/remat_search.h"

#include <algorithm>
#include <cmath>

// The search goes down the levels greedily and remembers what it inserted at every level. Then it goes up again: each
// level anneals the better of two schedules, the one that the level below ended with, which is within this limit too,
// and the one that the way down left here. Every level has the same work, so a level's plan depends on the levels below
// it alone.

namespace plimsoll {
namespace {

using namespace remat;

constexpr int64_t steps_per_op = 5000;  // more work per op and level does not pay for a small problem
constexpr int64_t rescue_levels = 20;   // annealing where greedy descent is stuck may take the work of so many levels,
constexpr int64_t rescue_share = 20;    // but at most 1/20 of all work
constexpr int32_t bounded_ops = 1000;   // for more ops the bound takes longer than the annealing that it can end
constexpr int32_t thorough_ops = 1000;  // for more ops, or with fewer steps than these, the way down tries
constexpr int64_t thorough_steps = 10'000'000;  // promising changes alone
constexpr double close_to_lowest = 1.15;        // a level may be packed below one that is lower by up to this factor
constexpr int64_t steps_per_node = 200;         // how long a node of the bound's exact searches takes

// Levels far down stand further apart, because few budgets ask for them and each of them takes longer to search.
double below(double limit, double plain_peak, double spacing) {
  const double share = limit / plain_peak;
  return limit * std::pow(share > 0.5 ? 0.98 : share > 0.25 ? 0.95 : 0.92, spacing);
}

struct Level {
  int64_t limit;
  double added_us;
  std::vector<ProgramPoint> extras;
};

// Levels from the highest down, as long as greedy descent, or annealing from where it stopped, gets below them.
std::vector<Level> way_down(RematSchedule& schedule, Tried tried, int64_t rescue_steps, const RematOptions& options) {
  std::vector<Level> levels;
  const double plain_peak = static_cast<double>(schedule.memory().peak());
  for (double limit = below(plain_peak, plain_peak, options.spacing);
       limit > std::max(1.0, options.min_share * plain_peak); limit = below(limit, plain_peak, options.spacing)) {
    int64_t bytes = static_cast<int64_t>(limit);
    if (!lower_peak(schedule, bytes, tried)) anneal(schedule, bytes, rescue_steps);
    if (schedule.memory().peak() > bytes) break;
    drop_unneeded(schedule, bytes);
    schedule.forget_journal();
    levels.push_back({bytes, schedule.added_us(), schedule.extras().vec()});
  }
  return levels;
}

// Takes other plans, the plain one first, where they are cheaper or the levels end before them.
void take_cheaper(std::vector<Level>& levels, double plain_peak, double spacing, llvm::ArrayRef<RematPlan> plans) {
  double limit = plain_peak;
  for (size_t i = 0; i + 1 < plans.size(); ++i) {
    limit = below(limit, plain_peak, spacing);
    const RematPlan& plan = plans[i + 1];
    if (i < levels.size() && levels[i].added_us <= plan.added_us) continue;
    levels.resize(std::max(levels.size(), i + 1));
    levels[i] = {static_cast<int64_t>(limit), plan.added_us, {}};
    for (const Remat& remat : plan.remats) levels[i].extras.push_back({remat.before, remat.op});
  }
}

}  // namespace

int64_t close_to(int64_t lowest_bytes) {
  return static_cast<int64_t>(close_to_lowest * static_cast<double>(lowest_bytes));
}

std::vector<RematPlan> remat_levels(const RematProblem& problem, int64_t highest_bytes, const RematOptions& options,
                                    llvm::ArrayRef<RematPlan> starts) {
  RematSchedule schedule(problem);
  const double plain_peak = static_cast<double>(schedule.memory().peak());
  int64_t steps = steps_for(options.seconds, remat_steps_per_second);
  const Tried tried = problem.op_count() <= thorough_ops && steps >= thorough_steps ? Tried::All : Tried::Promising;
  std::vector<Level> levels = way_down(
      schedule, tried, std::min(steps / rescue_share, rescue_levels * steps_per_op * problem.op_count()), options);
  take_cheaper(levels, plain_peak, options.spacing, starts);
  steps =
      std::min(steps / std::max<int64_t>(static_cast<int64_t>(levels.size()), 1), steps_per_op * problem.op_count());
  const bool is_bounded =
      problem.offloads.empty() && problem.op_count() <= bounded_ops;  // copies seldom let the search reach the bound
  std::vector<RematPlan> plans;
  for (size_t left = levels.size(); left > 0; --left) {
    const Level& level = levels[left - 1];
    drop_unneeded(schedule, level.limit);
    if (left == levels.size() || level.added_us < schedule.added_us()) set_extras(schedule, level.extras);
    const double enough_us = is_bounded ? min_added_us(problem, level.limit, steps / steps_per_node) : 0;
    anneal(schedule, level.limit, steps, enough_us);
    RematPlan plan = plan_of(schedule);
    if (plans.empty() && options.close_levels) highest_bytes = std::max(highest_bytes, close_to(plan.peak_bytes));
    if (plan.peak_bytes > highest_bytes && !plans.empty()) break;
    plans.push_back(std::move(plan));
  }
  RematPlan plain = measure_remats(problem, {});
  if (plans.empty() || plain.peak_bytes <= highest_bytes) plans.push_back(std::move(plain));
  std::reverse(plans.begin(), plans.end());
  return plans;
}

}  // namespace plimsoll
