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

using namespace remat;

constexpr double steps_per_second = 200e6;
constexpr int first_pairs = 8;  // of chains, on two threads

// Moves the limit towards the asked one by `ratio` at a time from `from`, annealing a little at each stop: what was
// cheap at the stops before leads to other plans than going there at once.
struct Approach {
  double from, ratio;  // limits, as shares of the asked limit
};

// Pairs of chains take turns with these. 1 alone: at once.
constexpr Approach approaches[] = {{1, 1}, {1 / 0.85, 0.97}, {0.85, 1.03}, {1.9, 0.93}};

struct Chain {
  Approach approach;
  AnnealOptions options;
};

void run_chain(RematSchedule& schedule, int64_t limit, const Chain& chain) {
  AnnealOptions options = chain.options;
  if (chain.approach.ratio != 1) {
    double stops = std::log(chain.approach.from) / -std::log(chain.approach.ratio);
    options.steps /= 2;
    AnnealOptions shortly = options;
    shortly.enough_us = 0;
    shortly.steps = static_cast<int64_t>(static_cast<double>(options.steps) / std::max(stops, 1.0));
    for (double share = chain.approach.from; (share < 1) == (chain.approach.from < 1) && share != 1;
         share *= chain.approach.ratio) {
      int64_t stop = static_cast<int64_t>(share * static_cast<double>(limit));
      lower_peak(schedule, stop, Tried::All);
      anneal(schedule, stop, shortly);
    }
  }
  if (lower_peak(schedule, limit, Tried::All)) drop_unneeded(schedule, limit);
  anneal(schedule, limit, options);
}

bool is_better(const RematSchedule& a, const RematSchedule& b, int64_t limit) {
  int64_t above_a = a.memory().excess(limit), above_b = b.memory().excess(limit);
  return above_a != above_b ? above_a < above_b : a.added_us() < b.added_us();
}

// Nothing within the limit adds less time.
bool is_proven(const RematSchedule& schedule, int64_t limit, double bound) {
  constexpr double rounding = 1e-12;  // between sums of the same costs in another order
  return schedule.memory().peak() <= limit && schedule.added_us() <= bound * (1 + rounding);
}

// Anneals copies of `start`, one a thread. Chains do not see each other, so it does not show that there are threads.
RematSchedule best_of(const RematSchedule& start, int64_t limit, llvm::ArrayRef<Chain> chains) {
  std::vector<RematSchedule> ends(chains.size(), start);
  std::vector<std::thread> others;
  for (size_t c = 1; c < chains.size(); ++c) others.emplace_back([&, c] { run_chain(ends[c], limit, chains[c]); });
  run_chain(ends[0], limit, chains[0]);
  for (std::thread& other : others) other.join();
  return *std::min_element(ends.begin(), ends.end(),
                           [&](const RematSchedule& a, const RematSchedule& b) { return is_better(a, b, limit); });
}

}  // namespace

RematPlan measure_remats(const RematProblem& problem, std::vector<Remat> remats, std::vector<Reload> reloads) {
  RematSchedule schedule(problem);
  std::sort(remats.begin(), remats.end());
  std::sort(reloads.begin(), reloads.end());
  for (const Remat& repeat : remats) schedule.insert({repeat.before, repeat.op});
  for (const Reload& reload : reloads)
    schedule.insert(schedule.point_before(reload.before, schedule.reload_of(reload.value)));
  return {std::move(remats), std::move(reloads), schedule.added_us(), schedule.memory().peak()};
}

RematPlan remat::plan_of(const RematSchedule& schedule) {
  RematSchedule afresh(schedule.problem());
  set_extras(afresh, schedule.extras());
  RematPlan plan{{}, {}, afresh.added_us(), afresh.memory().peak()};
  for (ProgramPoint at : afresh.extras()) {
    if (afresh.is_reload(at.op)) plan.reloads.push_back({afresh.position_after(at), afresh.op(at.op).writes[0]});
    if (!afresh.is_copy(at.op)) plan.remats.push_back({at.position, at.op});
  }
  std::sort(plan.reloads.begin(), plan.reloads.end());
  return plan;
}

RematProblem with_offloads(RematProblem problem, std::vector<OffloadOption> offloads) {
  problem.offloads = std::move(offloads);
  return problem;
}

RematPlan remat_within(const RematProblem& problem, int64_t limit_bytes, const RematOptions& options) {
  RematSchedule start(problem);
  if (start.memory().peak() <= limit_bytes) return plan_of(start);
  double bound = min_added_us(problem, limit_bytes);
  int64_t steps = static_cast<int64_t>(options.seconds * steps_per_second);
  uint64_t seed = options.seed;
  auto pair = [&](const Approach& approach, int64_t chain_steps, double other_heat) {
    AnnealOptions cool{chain_steps, seed++, 1.0, bound}, other{chain_steps, seed++, other_heat, bound};
    return std::array<Chain, 2>{Chain{approach, cool}, Chain{approach, other}};
  };
  RematSchedule best = start;
  if (!problem.offloads.empty()) {
    // What remats alone can do is not to be missed for having more to choose from.
    RematPlan remats_only = remat_within(with_offloads(problem, {}), limit_bytes, options);
    for (const Remat& repeat : remats_only.remats) best.insert({repeat.before, repeat.op});
  }
  for (int i = 0; i < first_pairs && !is_proven(best, limit_bytes, bound); ++i) {
    RematSchedule next = best_of(start, limit_bytes, pair(approaches[i % 4], steps * 3 / 4 / first_pairs, 2.0));
    if (is_better(next, best, limit_bytes)) best = std::move(next);
  }
  best = best_of(best, limit_bytes, pair(approaches[0], steps / 4, 1.0));
  drop_unneeded(best, limit_bytes);
  return plan_of(best);
}

}  // namespace plimsoll
