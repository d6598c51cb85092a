#include "passes/fit_budget.h"

// The budget bounds the arena, which is what placement makes of the live bytes. So each function's plans are tried from
// the cheapest that could fit on, until one does once it is laid out. The plans come from a ladder that does not depend on the
// budget: more budget never means more time.

#include "ir/units.h"
#include "ir/verify.h"
#include "passes/budget.h"
#include "passes/recompute.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

namespace plimsoll {
namespace {

// A plan that may be tried: repeats in one of the orders of a function.
struct Candidate {
  size_t order;
  RecomputePlan plan;
};

// What is known of a function that does not fit as it is.
struct Track {
  std::vector<Graph> orders;
  std::vector<RecomputeProblem> problems;  // by order
  std::vector<Candidate> candidates;       // cheapest first
  size_t next = 0;                         // the one to try when the one before did not fit
};

class Fitter {
 public:
  Fitter(const LoweringInput& input, const Plan& plain, const FitOptions& options)
      : in_(input), options_(options), program_(input.program), repeats_(program_.functions.size()), tracks_(program_.functions.size()) {
    const Arena& arena = plain.arenas.front();
    allowance_ = arena.budget_bytes - input.device.reserve_bytes() - arena.persistent_bytes;
    for (size_t f = 0; f < tracks_.size(); ++f)
      if (plain.functions[f].transient_bytes > allowance_) search(f);
  }

  Result<Plan> run() {
    for (;;) {
      bool stepped = false;
      for (size_t f = 0; f < tracks_.size(); ++f) {
        if (!wants_step_[f] || tracks_[f].next >= tracks_[f].candidates.size()) continue;
        if (Status s = step(f)) return s;
        stepped = true;
      }
      Result<Plan> plan = lower_to_plan({program_, in_.writers, in_.device, in_.catalog, in_.budget_bytes, repeats_});
      if (!plan) return plan.takeError();
      if (is_within_budget(*plan)) return explained(std::move(*plan));
      if (!stepped) return over_budget(*plan, options_.batch);
      for (size_t f = 0; f < tracks_.size(); ++f) wants_step_[f] = plan->functions[f].transient_bytes > allowance_;
    }
  }

 private:
  void search(size_t f) {
    Track& track = tracks_[f];
    wants_step_[f] = true;
    track.orders.push_back(in_.program.functions[f]);
    if (f < options_.other_orders.size()) {
      track.orders.push_back(in_.program.functions[f]);
      track.orders.back().reorder(options_.other_orders[f]);
    }
    RecomputeOptions options;
    options.seconds = options_.search_seconds / static_cast<double>(track.orders.size());
    for (size_t order = 0; order < track.orders.size(); ++order) {
      delay_free_updates(track.orders[order], in_.writers[f]);
      track.problems.push_back(recompute_problem(track.orders[order], in_.writers[f], in_.device, in_.catalog));
      for (RecomputePlan& plan : recompute_ladder(track.problems.back(), allowance_, options))
        track.candidates.push_back({order, std::move(plan)});
    }
    // The cheapest first, then floors above the allowance, which are there for the error, the lowest last.
    auto rank = [&](const Candidate& c) {
      bool fits = c.plan.peak_bytes <= allowance_;
      return std::make_pair(fits ? std::numeric_limits<int64_t>::min() : -c.plan.peak_bytes, c.plan.added_us);
    };
    std::stable_sort(track.candidates.begin(), track.candidates.end(),
                     [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
  }

  Status step(size_t f) {
    Track& track = tracks_[f];
    const Candidate& candidate = track.candidates[track.next++];
    program_.functions[f] = track.orders[candidate.order];
    repeats_[f] = apply_repeats(program_.functions[f], candidate.plan.repeats);
    return verify(program_.functions[f]);
  }

  Plan explained(Plan plan) const {
    for (size_t f = 0; f < tracks_.size(); ++f) {
      const Track& track = tracks_[f];
      if (track.next == 0) continue;
      const RecomputePlan& chosen = track.candidates[track.next - 1].plan;
      const RecomputeProblem& problem = track.problems[track.candidates[track.next - 1].order];
      double bound = least_added_us(problem, allowance_), total = 0;
      for (const RecomputeOp& op : problem.ops) total += op.cost_us;
      char numbers[160];
      std::snprintf(numbers, sizeof(numbers), "adds %.3f ms, %.2f %% of the function; no repeats of this order within the budget add less than %.3f ms",
                    chosen.added_us / 1e3, 100 * chosen.added_us / std::max(total, 1e-9), bound / 1e3);
      plan.decisions.push_back({"recompute", plan.functions[f].name, "repeat " + std::to_string(chosen.repeats.size()) + " instructions", numbers});
      for (NodeId id : repeats_[f]) {
        const Graph& graph = program_.functions[f];
        plan.decisions.push_back({"recompute", graph.value(graph.node(id).results[0]).name, "repeat", graph.node(id).reason});
      }
    }
    return plan;
  }

  const LoweringInput& in_;
  FitOptions options_;
  Program program_;
  std::vector<std::vector<NodeId>> repeats_;
  std::vector<Track> tracks_;
  std::vector<char> wants_step_ = std::vector<char>(tracks_.size());
  int64_t allowance_ = 0;  // transient bytes a function may have
};

}  // namespace

Result<Plan> fit_budget(const LoweringInput& input, const FitOptions& options) {
  Result<Plan> plain = lower_to_plan(input);
  if (!plain || is_within_budget(*plain)) return plain;
  if (!options.recompute) return over_budget(*plain, options.batch);
  return Fitter(input, *plain, options).run();
}

}  // namespace plimsoll
