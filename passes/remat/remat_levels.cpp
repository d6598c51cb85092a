#include "ir/support/search_effort.h"
#include "passes/remat/remat_search.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <utility>

// The search goes down the levels greedily and remembers what it inserted at every level. Then it goes up again: each
// level anneals the better of two schedules, the one that the level below ended with, which is within this limit too,
// and the one that the way down left here. Every level has the same work, so a level's plan depends on the levels below
// it alone.
//
// In long problems the way down takes strides of several levels, in which many changes pay at once. Only the levels
// that budgets ask for are then reached from the stride above them, so their plans do not depend on what is asked for.

namespace plimsoll {
namespace {

using namespace remat;

constexpr size_t levels_per_stride = 8;
constexpr int64_t steps_per_op = 5000;  // more work per op and level does not pay for a small problem
constexpr int64_t rescue_levels = 20;   // annealing where greedy descent is stuck may take the work of so many levels,
constexpr int64_t rescue_share = 20;    // but at most 1/20 of all work
constexpr int32_t bounded_ops = 1000;   // for more ops the bound takes longer than the annealing that it can end
constexpr int32_t thorough_ops = 1000;  // for more ops, or with fewer steps than these, the way down tries
constexpr int64_t thorough_steps = 10'000'000;  // promising changes alone
constexpr int64_t brief_steps = 30'000'000;     // a long problem with fewer tries few candidates that are alike
constexpr double close_to_lowest = 1.15;        // a level may be packed below one that is lower by up to this factor
constexpr int64_t steps_per_node = 200;         // how long a node of the bound's exact searches takes

Tried tried_in(int32_t ops, int64_t steps, bool is_one_of_many) {
  if (ops >= long_ops && (is_one_of_many || steps < brief_steps)) return Tried::FewAlike;
  return ops <= thorough_ops && steps >= thorough_steps ? Tried::All : Tried::Promising;
}

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

// The limits of all levels, from the highest down.
std::vector<int64_t> limits_below(double plain_peak, const RematOptions& options) {
  std::vector<int64_t> limits;
  for (double limit = below(plain_peak, plain_peak, options.spacing);
       limit > std::max(1.0, options.min_share * plain_peak); limit = below(limit, plain_peak, options.spacing))
    limits.push_back(static_cast<int64_t>(limit));
  return limits;
}

// Goes down the levels, as long as greedy descent, or annealing from where it stopped, gets below them.
class WayDown {
 public:
  WayDown(RematSchedule& schedule, Tried tried, int64_t rescue_steps, const RematOptions& options)
      : schedule_(schedule),
        tried_(tried),
        rescue_steps_(rescue_steps),
        limits_(limits_below(static_cast<double>(schedule.memory().peak()), options)) {}

  // The lowest levels, highest first, with at least one above `highest_bytes`; with `close_levels` also those that are
  // close to the lowest.
  std::vector<Level> run(int64_t highest_bytes, bool close_levels) {
    if (schedule_.problem().op_count() >= long_ops) take_strides();
    const size_t last_stride = strides_.size();
    std::vector<Level> levels = between(last_stride, limits_.size());
    count_ = last_stride * levels_per_stride + levels.size();
    const int64_t lowest = count_ > 0 ? limits_[count_ - 1] : 0;
    if (close_levels) highest_bytes = std::max(highest_bytes, close_to(lowest));
    for (size_t stride = last_stride; stride > 0; --stride) {
      if (!levels.empty() && levels.front().limit > highest_bytes) break;
      std::vector<Level> above = between(stride - 1, stride * levels_per_stride - 1);
      above.push_back(std::move(strides_[stride - 1]));
      std::move(levels.begin(), levels.end(), std::back_inserter(above));
      levels = std::move(above);
    }
    return levels;
  }

  // The number of levels down to the lowest.
  int64_t count() const { return static_cast<int64_t>(count_); }

 private:
  // Remembers every level at the end of a stride. Where one is out of reach, single levels go on from the last.
  void take_strides() {
    for (size_t end = levels_per_stride; end <= limits_.size(); end += levels_per_stride) {
      if (!lower_peak(schedule_, limits_[end - 1], tried_)) return;
      strides_.push_back(level_at(limits_[end - 1]));
    }
  }

  // The levels behind so many strides, up to number `end` or where annealing is stuck too.
  std::vector<Level> between(size_t strides, size_t end) {
    set_extras(schedule_, strides > 0 ? llvm::ArrayRef(strides_[strides - 1].extras) : llvm::ArrayRef<ProgramPoint>());
    std::vector<Level> levels;
    for (size_t i = strides * levels_per_stride; i < end; ++i) {
      if (!lower_peak(schedule_, limits_[i], tried_)) anneal(schedule_, limits_[i], rescue_steps_);
      if (schedule_.memory().peak() > limits_[i]) break;
      levels.push_back(level_at(limits_[i]));
    }
    return levels;
  }

  Level level_at(int64_t limit) {
    drop_unneeded(schedule_, limit);
    schedule_.forget_journal();
    return {limit, schedule_.added_us(), schedule_.extras().vec()};
  }

  RematSchedule& schedule_;
  Tried tried_;
  int64_t rescue_steps_;
  std::vector<int64_t> limits_;
  std::vector<Level> strides_;  // the level at the end of each
  size_t count_ = 0;
};

// Takes other plans where they are cheaper or there is no such level.
void take_cheaper(std::vector<Level>& levels, llvm::ArrayRef<RematPlan> plans) {
  for (const RematPlan& plan : plans) {
    if (plan.level_bytes == 0) continue;
    auto level = llvm::find_if(levels, [&](const Level& other) { return other.limit <= plan.level_bytes; });
    const bool is_there = level != levels.end() && level->limit == plan.level_bytes;
    if (is_there && level->added_us <= plan.added_us) continue;
    if (!is_there) level = levels.insert(level, Level{});
    *level = {plan.level_bytes, plan.added_us, {}};
    for (const Remat& remat : plan.remats) level->extras.push_back({remat.before, remat.op});
  }
}

}  // namespace

int64_t close_to(int64_t lowest_bytes) {
  return static_cast<int64_t>(close_to_lowest * static_cast<double>(lowest_bytes));
}

bool ends_levels(const RematProblem& problem, const RematPlan& plan, const RematPlan& below, int64_t limit_bytes) {
  return plan.peak_bytes > limit_bytes || (problem.op_count() >= long_ops && below.level_bytes > limit_bytes);
}

std::vector<RematPlan> remat_levels(const RematProblem& problem, int64_t highest_bytes, const RematOptions& options,
                                    llvm::ArrayRef<RematPlan> starts) {
  RematSchedule schedule(problem);
  int64_t steps = steps_for(options.seconds, remat_steps_per_second);
  const Tried tried = tried_in(problem.op_count(), steps, options.is_one_of_many);
  WayDown way(schedule, tried, std::min(steps / rescue_share, rescue_levels * steps_per_op * problem.op_count()),
              options);
  std::vector<Level> levels = way.run(highest_bytes, options.close_levels);
  take_cheaper(levels, starts);
  if (options.close_levels && !levels.empty()) highest_bytes = std::max(highest_bytes, close_to(levels.back().limit));
  steps = std::min(steps / std::max<int64_t>(way.count(), 1), steps_per_op * problem.op_count());
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
    plan.level_bytes = level.limit;
    if (!plans.empty() && ends_levels(problem, plan, plans.back(), highest_bytes)) break;
    plans.push_back(std::move(plan));
  }
  RematPlan plain = measure_remats(problem, {});
  if (plans.empty() || plain.peak_bytes <= highest_bytes) plans.push_back(std::move(plain));
  std::reverse(plans.begin(), plans.end());
  return plans;
}

}  // namespace plimsoll
