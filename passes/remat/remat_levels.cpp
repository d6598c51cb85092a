#include "ir/support/search_effort.h"
#include "passes/remat/level_groups.h"
#include "passes/remat/remat_descent.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <utility>

// The search goes down the levels greedily and remembers what it inserted at every level. Then it goes up again: each
// level anneals the better of two schedules, the one that the level below ended with, which is within this limit too,
// and the one that the way down left here. Every level has the same work, so a level's plan depends on the levels below
// it in its group alone.
//
// A long problem has several groups of levels. The way down takes each of them in one stride, in which many changes pay
// at once, and a group starts from the stride that ended above it. So a group's plans do not depend on whether others
// are searched.

namespace plimsoll {
namespace {

using namespace remat;

constexpr double share_of_stride = 0.85;  // a stride of a long problem goes down to this share of where it starts,
constexpr size_t levels_per_stride = 8;   // and past so many levels, unless they stand further apart than usual
constexpr int64_t steps_per_op = 5000;    // more work per op and level does not pay for a small problem
constexpr int64_t rescue_levels = 20;  // annealing where greedy descent is stuck may take the work of so many levels,
constexpr int64_t rescue_share = 20;   // but at most 1/20 of all work
// Where a level adds more than its bound by this factor, annealing leads nowhere: making a value again needs many
// others. Such a level is repaired too, and where greedy descent is stuck, repairs go on from the level above.
constexpr double far_from_bound = 2;
constexpr int64_t repair_steps_per_op = 40'000;
constexpr int64_t rescue_steps_per_op = 1'000'000;  // finds a plan at 70 % of the peak of a published graph of 250 ops
constexpr int64_t repair_share = 8;                 // a rescue takes at most 1/8 of all work
constexpr int32_t bounded_ops = 1000;   // for more ops the bound takes longer than the annealing that it can end
constexpr int32_t thorough_ops = 1000;  // for more ops, or with fewer steps than these, the way down tries
constexpr int64_t thorough_steps = 10'000'000;      // promising changes alone
constexpr int64_t brief_steps = 30'000'000;         // a long problem with fewer tries few candidates that are alike,
constexpr int64_t brief_steps_apart = 250'000'000;  // or with fewer than these where levels stand further apart
constexpr double close_to_lowest = 1.15;  // a level may be packed below one that is lower by up to this factor
constexpr int64_t steps_per_node = 200;   // how long a node of the bound's exact searches takes

Tried tried_in(int32_t ops, int64_t steps, const RematOptions& options) {
  const bool is_brief = steps < (options.spacing > 1 ? brief_steps_apart : brief_steps);
  if (ops >= long_ops && (options.is_one_of_many || is_brief)) return Tried::FewAlike;
  return ops <= thorough_ops && steps >= thorough_steps ? Tried::All : Tried::Promising;
}

// Levels far down stand further apart, because few budgets ask for them and each of them takes longer to search.
double below(double limit, double plain_peak, double spacing) {
  const double share = limit / plain_peak;
  return limit * std::pow(share > 0.5 ? 0.98 : share > 0.25 ? 0.95 : 0.92, spacing);
}

// The limits of all levels that may be within reach, from the highest down.
std::vector<int64_t> limits_below(double plain_peak, int64_t min_peak_bytes, const RematOptions& options) {
  std::vector<int64_t> limits;
  for (double limit = below(plain_peak, plain_peak, options.spacing);
       limit > std::max(1.0, options.min_share * plain_peak); limit = below(limit, plain_peak, options.spacing)) {
    if (static_cast<int64_t>(limit) < min_peak_bytes) break;
    limits.push_back(static_cast<int64_t>(limit));
  }
  return limits;
}

// Takes other plans of levels down to `lowest_bytes` where they are cheaper or there is no such level.
void take_cheaper(std::vector<RematLevel>& levels, llvm::ArrayRef<RematPlan> plans, int64_t highest_bytes,
                  int64_t lowest_bytes) {
  for (const RematPlan& plan : plans) {
    if (plan.level_bytes == 0 || plan.level_bytes > highest_bytes || plan.level_bytes < lowest_bytes) continue;
    auto level = llvm::find_if(levels, [&](const RematLevel& other) { return other.limit <= plan.level_bytes; });
    const bool is_there = level != levels.end() && level->limit == plan.level_bytes;
    if (is_there && level->added_us <= plan.added_us) continue;
    if (!is_there) level = levels.insert(level, RematLevel{});
    *level = {plan.level_bytes, plan.added_us, {}};
    for (const Remat& remat : plan.remats) level->extras.push_back({remat.before, remat.op});
  }
}

bool is_tangled(const RematSchedule& schedule, double added_us, double bound_us) {
  return schedule.is_all_compute() && bound_us > 0 && added_us > far_from_bound * bound_us;
}

}  // namespace

int64_t close_to(int64_t lowest_bytes) {
  return static_cast<int64_t>(close_to_lowest * static_cast<double>(lowest_bytes));
}

bool ends_levels(const RematProblem& problem, const RematPlan& plan, const RematPlan& below, int64_t limit_bytes) {
  return plan.peak_bytes > limit_bytes || (problem.op_count() >= long_ops && below.level_bytes > limit_bytes);
}

RematLevelGroups::RematLevelGroups(RematProblem problem, const RematOptions& options)
    : problem_(std::move(problem)),
      steps_(steps_for(options.seconds, remat_steps_per_second)),
      tried_(tried_in(problem_.op_count(), steps_, options)),
      chains_(options.is_deep ? Chains::Long : Chains::Short) {
  const int64_t plain_peak = measure_remats(problem_, {}).peak_bytes;
  limits_ = limits_below(static_cast<double>(plain_peak), min_peak_bytes(problem_), options);
  if (!is_long() && !limits_.empty()) ends_.push_back(limits_.size());
  if (!is_long()) return;
  const size_t min_levels = options.spacing > 1 ? 1 : levels_per_stride;
  auto start = static_cast<double>(plain_peak);
  for (size_t i = 0; i < limits_.size(); ++i) {
    const auto limit = static_cast<double>(limits_[i]);
    const size_t levels = i + 1 - (ends_.empty() ? 0 : ends_.back());
    if ((limit > share_of_stride * start || levels < min_levels) && i + 1 < limits_.size()) continue;
    ends_.push_back(i + 1);
    start = limit;
  }
}

RematLevel RematLevelGroups::level_at(RematSchedule& schedule, int64_t limit) {
  drop_unneeded(schedule, limit);
  schedule.forget_journal();
  return {limit, schedule.added_us(), schedule.extras().vec()};
}

void RematLevelGroups::start_from(RematSchedule& schedule, size_t group) const {
  set_extras(schedule, group > 0 ? llvm::ArrayRef(strides_[group - 1].extras) : llvm::ArrayRef<ProgramPoint>());
}

bool RematLevelGroups::reaches(size_t group) {
  if (group >= ends_.size()) return false;
  while (strides_.size() < group && !stuck_) {
    // Each stride starts anew: what a schedule holds says nothing of the order in which it came, on which ties depend.
    RematSchedule schedule(problem_);
    start_from(schedule, strides_.size());
    const int64_t limit = limits_[ends_[strides_.size()] - 1];
    if (lower_peak(schedule, limit, tried_, chains_))
      strides_.push_back(level_at(schedule, limit));
    else
      stuck_ = schedule.extras().vec();
  }
  return strides_.size() >= group;
}

// What nothing of a level's limit adds less than, or 0 where that takes too long to find out. Copies seldom let the
// search reach the bound.
double RematLevelGroups::bound_us(int64_t limit, int64_t steps) const {
  const bool is_bounded = problem_.offloads.empty() && problem_.op_count() <= bounded_ops;
  return is_bounded ? min_added_us(problem_, limit, steps / steps_per_node) : 0;
}

// Lowers the peak where greedy descent does not.
void RematLevelGroups::rescue(RematSchedule& schedule, int64_t limit, const RematLevel* above) const {
  const int64_t steps = std::min(steps_ / rescue_share, rescue_levels * steps_per_op * problem_.op_count());
  if (!above || !is_tangled(schedule, above->added_us, bound_us(above->limit, steps)))
    return anneal(schedule, limit, steps);
  set_extras(schedule, above->extras);
  repair(schedule, limit, std::min(steps_ / repair_share, rescue_steps_per_op * problem_.op_count()));
}

// The levels of a group on the way down, up to where annealing is stuck too. A stride that is out of reach leaves its
// group all that single levels reach; where it goes to the next level, it has shown already that greedy descent does
// not get there.
std::vector<RematLevel> RematLevelGroups::way_down(RematSchedule& schedule, size_t group) {
  const bool is_last = !reaches(group + 1);
  const bool is_stuck = is_last && stuck_ && begin(group) + 1 == ends_[group];
  const RematLevel* const above = group > 0 ? &strides_[group - 1] : nullptr;
  start_from(schedule, group);
  if (is_stuck) set_extras(schedule, *stuck_);
  Descent descent(schedule, tried_, chains_);
  std::vector<RematLevel> levels;
  const size_t first = begin(group), end = is_last ? limits_.size() : ends_[group] - 1;
  for (size_t i = first; i < end; ++i) {
    const bool is_out_of_reach = (i == first && is_stuck) || !descent.lower_to(limits_[i]);
    if (is_out_of_reach) rescue(schedule, limits_[i], levels.empty() ? above : &levels.back());
    if (schedule.memory().peak() > limits_[i]) break;
    levels.push_back(level_at(schedule, limits_[i]));
  }
  if (!is_last) levels.push_back(strides_[group]);
  return levels;
}

std::vector<RematPlan> RematLevelGroups::search(size_t group, int64_t highest_bytes, bool close_levels,
                                                llvm::ArrayRef<RematPlan> starts) {
  if (!reaches(group)) return {};
  RematSchedule schedule(problem_);
  std::vector<RematLevel> levels = way_down(schedule, group);
  // Work is divided between the levels that there are, or that a long problem may have.
  const size_t count = is_long() ? limits_.size() : levels.size();
  const bool is_last = strides_.size() <= group;
  take_cheaper(levels, starts, limits_[begin(group)], is_last ? 0 : lowest_bytes(group));
  if (close_levels && !levels.empty()) highest_bytes = std::max(highest_bytes, close_to(levels.back().limit));
  const int64_t share = steps_ / std::max<int64_t>(static_cast<int64_t>(count), 1),
                steps = std::min(share, steps_per_op * problem_.op_count());
  std::vector<RematPlan> plans;
  for (size_t left = levels.size(); left > 0; --left) {
    const RematLevel& level = levels[left - 1];
    drop_unneeded(schedule, level.limit);
    if (left == levels.size() || level.added_us < schedule.added_us()) set_extras(schedule, level.extras);
    const double enough_us = bound_us(level.limit, steps);
    anneal(schedule, level.limit, steps, enough_us);
    if (is_tangled(schedule, schedule.added_us(), enough_us))
      repair(schedule, level.limit, std::min(share, repair_steps_per_op * problem_.op_count()), enough_us);
    RematPlan plan = plan_of(schedule);
    plan.level_bytes = level.limit;
    if (!plans.empty() && ends_levels(problem_, plan, plans.back(), highest_bytes)) break;
    plans.push_back(std::move(plan));
  }
  std::reverse(plans.begin(), plans.end());
  return plans;
}

double added_us_of_descent(const RematProblem& problem, int64_t limit_bytes) {
  RematSchedule schedule(problem);
  if (!lower_peak(schedule, limit_bytes, Tried::FewAlike)) return std::numeric_limits<double>::infinity();
  drop_unneeded(schedule, limit_bytes);
  return schedule.added_us();
}

std::vector<RematPlan> remat_levels(const RematProblem& problem, int64_t highest_bytes, const RematOptions& options,
                                    llvm::ArrayRef<RematPlan> starts) {
  RematLevelGroups groups(problem, options);
  size_t count = 0;
  while (groups.reaches(count)) ++count;
  std::vector<RematPlan> plans;  // lowest level first
  while (count > 0 && (plans.empty() || plans.back().level_bytes <= highest_bytes)) {
    std::vector<RematPlan> group = groups.search(--count, highest_bytes, options.close_levels && plans.empty(), starts);
    if (group.empty()) continue;
    if (options.close_levels && plans.empty())
      highest_bytes = std::max(highest_bytes, close_to(group.back().level_bytes));
    if (!plans.empty() && ends_levels(problem, group.back(), plans.back(), highest_bytes)) break;
    std::move(group.rbegin(), group.rend(), std::back_inserter(plans));
    if (plans.back().level_bytes < groups.highest_bytes(count)) break;
  }
  RematPlan plain = measure_remats(problem, {});
  if (plans.empty() || plain.peak_bytes <= highest_bytes) plans.push_back(std::move(plain));
  std::reverse(plans.begin(), plans.end());
  return plans;
}

}  // namespace plimsoll
