#include "passes/remat/remat_search.h"

#include <algorithm>

// Down the ladder greedily, remembering what was inserted at every rung, then up again: each rung anneals the better of what the
// rung below ended with, which is within this limit too, and what the way down left here. Work a rung is fixed, so a
// rung's plan depends on the rungs below it alone.

namespace plimsoll {
namespace {

using namespace fit;

constexpr double steps_per_second = 200e6;
constexpr int64_t steps_per_op = 5000;  // a rung of a small problem needs no more for each op
constexpr int32_t bounded_ops = 1000;    // of more, the bound takes longer than the annealing that it ends
constexpr int32_t thorough_ops = 1000;   // down a sequence of more, or of that with less work to do than this, promising changes are tried alone
constexpr int64_t thorough_steps = 10'000'000;
constexpr int64_t steps_per_node = 200;  // of the bound's exact searches

// Few budgets ask for what is far down, and there is the more to do for each rung.
double below(double limit, double plain_peak) {
  const double share = limit / plain_peak;
  return limit * (share > 0.5 ? 0.98 : share > 0.25 ? 0.95 : 0.92);
}

struct Rung {
  int64_t limit;
  double added_us;
  std::vector<Moment> extras;
};

// From the highest down, while greedy descent or annealing from where it stopped finds a way.
std::vector<Rung> way_down(Sequence& sequence, Tried tried, int64_t rescue_steps, double least_share) {
  std::vector<Rung> rungs;
  const double plain_peak = static_cast<double>(sequence.memory().peak());
  for (double limit = below(plain_peak, plain_peak); limit > std::max(1.0, least_share * plain_peak); limit = below(limit, plain_peak)) {
    int64_t bytes = static_cast<int64_t>(limit);
    if (!lower_peak(sequence, bytes, tried)) anneal(sequence, bytes, {.steps = rescue_steps});
    if (sequence.memory().peak() > bytes) break;
    drop_unneeded(sequence, bytes);
    sequence.forget_journal();
    rungs.push_back({bytes, sequence.added_us(), sequence.extras().vec()});
  }
  return rungs;
}

// Puts other plans, the plain one first, where they are cheaper or there are no rungs.
void take_cheaper(std::vector<Rung>& rungs, double plain_peak, llvm::ArrayRef<RecomputePlan> plans) {
  double limit = plain_peak;
  for (size_t i = 0; i + 1 < plans.size(); ++i) {
    limit = below(limit, plain_peak);
    const RecomputePlan& plan = plans[i + 1];
    if (i < rungs.size() && rungs[i].added_us <= plan.added_us) continue;
    rungs.resize(std::max(rungs.size(), i + 1));
    rungs[i] = {static_cast<int64_t>(limit), plan.added_us, {}};
    for (const Repeat& repeat : plan.repeats) rungs[i].extras.push_back({repeat.before, repeat.op});
  }
}

}  // namespace

std::vector<RecomputePlan> recompute_ladder(const RecomputeProblem& problem, int64_t highest_bytes, const RecomputeOptions& options,
                                            llvm::ArrayRef<RecomputePlan> starts) {
  Sequence sequence(problem);
  const double plain_peak = static_cast<double>(sequence.memory().peak());
  int64_t steps = static_cast<int64_t>(options.seconds * steps_per_second);
  const Tried tried = problem.op_count() <= thorough_ops && steps >= thorough_steps ? Tried::All : Tried::Promising;
  std::vector<Rung> rungs = way_down(sequence, tried, std::min(steps / 20, 20 * steps_per_op * problem.op_count()), options.least_share);
  take_cheaper(rungs, plain_peak, starts);
  steps = std::min(steps / std::max<int64_t>(static_cast<int64_t>(rungs.size()), 1), steps_per_op * problem.op_count());
  const bool is_bounded = problem.offloads.empty() && problem.op_count() <= bounded_ops;  // with copies the bound is seldom reached
  std::vector<RecomputePlan> plans;
  for (size_t left = rungs.size(); left > 0; --left) {
    const Rung& rung = rungs[left - 1];
    drop_unneeded(sequence, rung.limit);
    if (left == rungs.size() || rung.added_us < sequence.added_us()) set_extras(sequence, rung.extras);
    const double enough_us = is_bounded ? least_added_us(problem, rung.limit, steps / steps_per_node) : 0;
    anneal(sequence, rung.limit, {steps, options.seed, 1.0, enough_us});
    RecomputePlan plan = plan_of(sequence);
    if (plan.peak_bytes > highest_bytes && !plans.empty()) break;
    plans.push_back(std::move(plan));
  }
  RecomputePlan plain = measure_repeats(problem, {});
  if (plans.empty() || plain.peak_bytes <= highest_bytes) plans.push_back(std::move(plain));
  std::reverse(plans.begin(), plans.end());
  return plans;
}

}  // namespace plimsoll
