#include "passes/remat/remat.h"

#include "passes/remat/remat_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>

// Chains of greedy descent and annealing from different sides of the limit, then more annealing from the best of them.
// All of it ends as soon as the lower bound is reached.

namespace plimsoll {
namespace {

using namespace fit;

constexpr double steps_per_second = 200e6;
constexpr int first_pairs = 8;  // of chains, on two threads

// Moves the limit towards the asked one by `ratio` at a time from `from`, annealing a little at each stop: what was cheap
// at the stops before leads to other plans than going there at once.
struct Approach {
  double from, ratio;  // limits, as shares of the asked limit
};

// Pairs of chains take turns with these. 1 alone: at once.
constexpr Approach approaches[] = {{1, 1}, {1 / 0.85, 0.97}, {0.85, 1.03}, {1.9, 0.93}};

struct Chain {
  Approach approach;
  AnnealOptions options;
};

void run_chain(Sequence& sequence, int64_t limit, const Chain& chain) {
  AnnealOptions options = chain.options;
  if (chain.approach.ratio != 1) {
    double stops = std::log(chain.approach.from) / -std::log(chain.approach.ratio);
    options.steps /= 2;
    AnnealOptions shortly = options;
    shortly.enough_us = 0;
    shortly.steps = static_cast<int64_t>(static_cast<double>(options.steps) / std::max(stops, 1.0));
    for (double share = chain.approach.from; (share < 1) == (chain.approach.from < 1) && share != 1; share *= chain.approach.ratio) {
      int64_t stop = static_cast<int64_t>(share * static_cast<double>(limit));
      lower_peak(sequence, stop, Tried::All);
      anneal(sequence, stop, shortly);
    }
  }
  if (lower_peak(sequence, limit, Tried::All)) drop_unneeded(sequence, limit);
  anneal(sequence, limit, options);
}

bool is_better(const Sequence& a, const Sequence& b, int64_t limit) {
  int64_t above_a = a.memory().excess(limit), above_b = b.memory().excess(limit);
  return above_a != above_b ? above_a < above_b : a.added_us() < b.added_us();
}

// Nothing within the limit adds less time.
bool is_proven(const Sequence& sequence, int64_t limit, double bound) {
  constexpr double rounding = 1e-12;  // between sums of the same costs in another order
  return sequence.memory().peak() <= limit && sequence.added_us() <= bound * (1 + rounding);
}

// Anneals copies of `start`, one a thread. Chains do not see each other, so it does not show that there are threads.
Sequence best_of(const Sequence& start, int64_t limit, llvm::ArrayRef<Chain> chains) {
  std::vector<Sequence> ends(chains.size(), start);
  std::vector<std::thread> others;
  for (size_t c = 1; c < chains.size(); ++c) others.emplace_back([&, c] { run_chain(ends[c], limit, chains[c]); });
  run_chain(ends[0], limit, chains[0]);
  for (std::thread& other : others) other.join();
  return *std::min_element(ends.begin(), ends.end(), [&](const Sequence& a, const Sequence& b) { return is_better(a, b, limit); });
}

}  // namespace

RecomputePlan measure_repeats(const RecomputeProblem& problem, std::vector<Repeat> repeats, std::vector<Fetch> fetches) {
  Sequence sequence(problem);
  std::sort(repeats.begin(), repeats.end());
  std::sort(fetches.begin(), fetches.end());
  for (const Repeat& repeat : repeats) sequence.insert({repeat.before, repeat.op});
  for (const Fetch& fetch : fetches) sequence.insert(sequence.moment_before(fetch.before, sequence.fetch_of(fetch.value)));
  return {std::move(repeats), std::move(fetches), sequence.added_us(), sequence.memory().peak()};
}

RecomputePlan fit::plan_of(const Sequence& sequence) {
  Sequence afresh(sequence.problem());
  set_extras(afresh, sequence.extras());
  RecomputePlan plan{{}, {}, afresh.added_us(), afresh.memory().peak()};
  for (Moment at : afresh.extras()) {
    if (afresh.is_fetch(at.op)) plan.fetches.push_back({afresh.stage_after(at), afresh.op(at.op).writes[0]});
    if (!afresh.is_copy(at.op)) plan.repeats.push_back({at.stage, at.op});
  }
  std::sort(plan.fetches.begin(), plan.fetches.end());
  return plan;
}

RecomputeProblem with_offloads(RecomputeProblem problem, std::vector<OffloadOption> offloads) {
  problem.offloads = std::move(offloads);
  return problem;
}

RecomputePlan recompute_within(const RecomputeProblem& problem, int64_t limit_bytes, const RecomputeOptions& options) {
  Sequence start(problem);
  if (start.memory().peak() <= limit_bytes) return plan_of(start);
  double bound = least_added_us(problem, limit_bytes);
  int64_t steps = static_cast<int64_t>(options.seconds * steps_per_second);
  uint64_t seed = options.seed;
  auto pair = [&](const Approach& approach, int64_t chain_steps, double other_heat) {
    AnnealOptions cool{chain_steps, seed++, 1.0, bound}, other{chain_steps, seed++, other_heat, bound};
    return std::array<Chain, 2>{Chain{approach, cool}, Chain{approach, other}};
  };
  Sequence best = start;
  if (!problem.offloads.empty()) {
    // What repeats alone can do is not to be missed for having more to choose from.
    RecomputePlan repeats_only = recompute_within(with_offloads(problem, {}), limit_bytes, options);
    for (const Repeat& repeat : repeats_only.repeats) best.insert({repeat.before, repeat.op});
  }
  for (int i = 0; i < first_pairs && !is_proven(best, limit_bytes, bound); ++i) {
    Sequence next = best_of(start, limit_bytes, pair(approaches[i % 4], steps * 3 / 4 / first_pairs, 2.0));
    if (is_better(next, best, limit_bytes)) best = std::move(next);
  }
  best = best_of(best, limit_bytes, pair(approaches[0], steps / 4, 1.0));
  drop_unneeded(best, limit_bytes);
  return plan_of(best);
}

}  // namespace plimsoll
