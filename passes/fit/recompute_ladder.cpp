#include "passes/fit/recompute_search.h"

#include <algorithm>
#include <limits>

// Down the ladder greedily, remembering what was inserted at every rung, then up again: each rung anneals the better of what the
// rung below ended with, which is within this limit too, and what the way down left here. Work a rung is fixed, so a
// rung's plan depends on the rungs below it alone.

namespace plimsoll {
namespace {

using namespace fit;

constexpr double rung_ratio = 0.98;
constexpr double steps_per_second = 200e6;
constexpr int64_t steps_per_op = 5000;  // a rung of a small problem needs no more for each op
constexpr double repeats_only_share = 0.25;  // of the steps, for what is only where others may start

struct Rung {
  int64_t limit;
  double added_us;
  std::vector<Moment> extras;
};

// From the highest down, while greedy descent or annealing from where it stopped finds a way.
std::vector<Rung> way_down(Sequence& sequence, int64_t rescue_steps) {
  std::vector<Rung> rungs;
  double limit = static_cast<double>(sequence.memory().peak());
  while (limit > 1) {
    limit *= rung_ratio;
    int64_t bytes = static_cast<int64_t>(limit);
    if (!lower_peak(sequence, bytes)) anneal(sequence, bytes, {.steps = rescue_steps});
    if (sequence.memory().peak() > bytes) break;
    drop_unneeded(sequence, bytes);
    sequence.forget_journal();
    rungs.push_back({bytes, sequence.added_us(), sequence.extras().vec()});
  }
  return rungs;
}

bool has_copies(const RecomputeProblem& problem) {
  return llvm::any_of(problem.ops, [](const RecomputeOp& op) { return op.channel != Channel::Compute; });
}

// Puts plans of repeats alone, the plain one first, where they are cheaper or there are no rungs.
void take_cheaper(std::vector<Rung>& rungs, const Sequence& plain, llvm::ArrayRef<RecomputePlan> repeats_only) {
  double limit = static_cast<double>(plain.memory().peak());
  for (size_t i = 0; i + 1 < repeats_only.size(); ++i) {
    limit *= rung_ratio;
    const RecomputePlan& plan = repeats_only[i + 1];
    if (i < rungs.size() && rungs[i].added_us <= plan.added_us) continue;
    rungs.resize(std::max(rungs.size(), i + 1));
    rungs[i] = {static_cast<int64_t>(limit), plan.added_us, {}};
    for (const Repeat& repeat : plan.repeats) rungs[i].extras.push_back({repeat.before, repeat.op});
  }
}

}  // namespace

std::vector<RecomputePlan> recompute_ladder(const RecomputeProblem& problem, int64_t highest_bytes, const RecomputeOptions& options) {
  Sequence sequence(problem);
  int64_t steps = static_cast<int64_t>(options.seconds * steps_per_second);
  std::vector<Rung> rungs = way_down(sequence, std::min(steps / 20, 20 * steps_per_op * problem.op_count()));
  if (!problem.offloads.empty() && !has_copies(problem)) {
    RecomputeOptions shortly = options;
    shortly.seconds *= repeats_only_share;
    take_cheaper(rungs, Sequence(problem), recompute_ladder(without_offloads(problem), std::numeric_limits<int64_t>::max(), shortly));
  }
  steps = std::min(steps / std::max<int64_t>(static_cast<int64_t>(rungs.size()), 1), steps_per_op * problem.op_count());
  std::vector<RecomputePlan> plans;
  for (size_t left = rungs.size(); left > 0; --left) {
    const Rung& rung = rungs[left - 1];
    drop_unneeded(sequence, rung.limit);
    if (left == rungs.size() || rung.added_us < sequence.added_us()) set_extras(sequence, rung.extras);
    const double enough_us = problem.offloads.empty() ? least_added_us(problem, rung.limit) : 0;  // the bound with copies is seldom reached
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

llvm::ArrayRef<RecomputePlan> ladder_up_to(llvm::ArrayRef<RecomputePlan> ladder, int64_t highest_bytes) {
  size_t rungs = std::min<size_t>(ladder.size(), 1);
  while (rungs < ladder.size() && ladder[ladder.size() - rungs - 1].peak_bytes <= highest_bytes) ++rungs;
  return ladder.take_back(rungs);
}

}  // namespace plimsoll
