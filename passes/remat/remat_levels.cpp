#include "ir/support/search_effort.h"
#include "passes/remat/remat_search.h"

#include <algorithm>

// Down the levels greedily, remembering what was inserted at every level, then up again: each level anneals the better
// of what the level below ended with, which is within this limit too, and what the way down left here. Work a level is
// fixed, so a level's plan depends on the levels below it alone.

namespace plimsoll {
namespace {

using namespace remat;

constexpr int64_t steps_per_op = 5000;  // a level of a small problem needs no more for each op
constexpr int32_t bounded_ops = 1000;   // of more, the bound takes longer than the annealing that it ends
constexpr int32_t thorough_ops =
    1000;  // down a schedule of more, or of that with less work to do than this, promising changes are tried alone
constexpr int64_t thorough_steps = 10'000'000;
constexpr int64_t steps_per_node = 200;  // of the bound's exact searches

// Few budgets ask for what is far down, and there is the more to do for each level.
double below(double limit, double plain_peak) {
  const double share = limit / plain_peak;
  return limit * (share > 0.5 ? 0.98 : share > 0.25 ? 0.95 : 0.92);
}

struct OffloadLevel {
  int64_t limit;
  double added_us;
  std::vector<ProgramPoint> extras;
};

// From the highest down, while greedy descent or annealing from where it stopped finds a way.
std::vector<OffloadLevel> way_down(RematSchedule& schedule, Tried tried, int64_t rescue_steps, double min_share) {
  std::vector<OffloadLevel> levels;
  const double plain_peak = static_cast<double>(schedule.memory().peak());
  for (double limit = below(plain_peak, plain_peak); limit > std::max(1.0, min_share * plain_peak);
       limit = below(limit, plain_peak)) {
    int64_t bytes = static_cast<int64_t>(limit);
    if (!lower_peak(schedule, bytes, tried)) anneal(schedule, bytes, rescue_steps);
    if (schedule.memory().peak() > bytes) break;
    drop_unneeded(schedule, bytes);
    schedule.forget_journal();
    levels.push_back({bytes, schedule.added_us(), schedule.extras().vec()});
  }
  return levels;
}

// Puts other plans, the plain one first, where they are cheaper or there are no levels.
void take_cheaper(std::vector<OffloadLevel>& levels, double plain_peak, llvm::ArrayRef<RematPlan> plans) {
  double limit = plain_peak;
  for (size_t i = 0; i + 1 < plans.size(); ++i) {
    limit = below(limit, plain_peak);
    const RematPlan& plan = plans[i + 1];
    if (i < levels.size() && levels[i].added_us <= plan.added_us) continue;
    levels.resize(std::max(levels.size(), i + 1));
    levels[i] = {static_cast<int64_t>(limit), plan.added_us, {}};
    for (const Remat& repeat : plan.remats) levels[i].extras.push_back({repeat.before, repeat.op});
  }
}

}  // namespace

std::vector<RematPlan> remat_levels(const RematProblem& problem, int64_t highest_bytes, const RematOptions& options,
                                    llvm::ArrayRef<RematPlan> starts) {
  RematSchedule schedule(problem);
  const double plain_peak = static_cast<double>(schedule.memory().peak());
  int64_t steps = steps_for(options.seconds, remat_steps_per_second);
  const Tried tried = problem.op_count() <= thorough_ops && steps >= thorough_steps ? Tried::All : Tried::Promising;
  std::vector<OffloadLevel> levels =
      way_down(schedule, tried, std::min(steps / 20, 20 * steps_per_op * problem.op_count()), options.min_share);
  take_cheaper(levels, plain_peak, starts);
  steps =
      std::min(steps / std::max<int64_t>(static_cast<int64_t>(levels.size()), 1), steps_per_op * problem.op_count());
  const bool is_bounded =
      problem.offloads.empty() && problem.op_count() <= bounded_ops;  // with copies the bound is seldom reached
  std::vector<RematPlan> plans;
  for (size_t left = levels.size(); left > 0; --left) {
    const OffloadLevel& level = levels[left - 1];
    drop_unneeded(schedule, level.limit);
    if (left == levels.size() || level.added_us < schedule.added_us()) set_extras(schedule, level.extras);
    const double enough_us = is_bounded ? min_added_us(problem, level.limit, steps / steps_per_node) : 0;
    anneal(schedule, level.limit, steps, enough_us);
    RematPlan plan = plan_of(schedule);
    if (plan.peak_bytes > highest_bytes && !plans.empty()) break;
    plans.push_back(std::move(plan));
  }
  RematPlan plain = measure_remats(problem, {});
  if (plans.empty() || plain.peak_bytes <= highest_bytes) plans.push_back(std::move(plain));
  std::reverse(plans.begin(), plans.end());
  return plans;
}

}  // namespace plimsoll
