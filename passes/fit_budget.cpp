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
#include <optional>
#include <utility>

namespace plimsoll {
namespace {

// A plan that may be tried: repeats in one of the orders of a function.
struct Candidate {
  size_t order;
  const RecomputePlan* plan;
};

// What is known of a function that does not fit as it is.
struct Track {
  std::vector<Graph> orders;
  std::vector<RecomputeProblem> problems;           // by order
  std::vector<std::vector<RecomputePlan>> ladders;  // by order
  std::vector<Candidate> candidates;                // within the present allowance, cheapest first
  size_t next = 0;                                  // the one to try when the one before did not fit
};

class Fitter {
 public:
  // Budgets up to `highest_budget` may be asked for.
  Fitter(const LoweringInput& input, const Plan& plain, const FitOptions& options, int64_t highest_budget)
      : in_(input), plain_(plain), options_(options), highest_allowance_(allowance_of(highest_budget)), tracks_(input.program.functions.size()) {}

  // The cheapest plan within the budget; where there is none, the one that needs least.
  Result<Plan> within(int64_t budget_bytes) {
    start(budget_bytes);
    std::optional<Plan> least;
    for (;;) {
      bool stepped = false;
      for (size_t f = 0; f < tracks_.size(); ++f) {
        if (!wants_step_[f] || tracks_[f].next >= tracks_[f].candidates.size()) continue;
        if (Status s = step(f)) return s;
        stepped = true;
      }
      Result<Plan> plan = lower_to_plan({program_, in_.writers, in_.device, in_.catalog, budget_bytes, repeats_, in_.placement_seconds});
      if (!plan) return plan.takeError();
      if (is_within_budget(*plan)) return explained(std::move(*plan));
      if (stepped && (!least || plan->promised_bytes() < least->promised_bytes())) least = explained(*plan);
      if (!stepped) return least ? std::move(*least) : explained(std::move(*plan));
      for (size_t f = 0; f < tracks_.size(); ++f) wants_step_[f] = plan->functions[f].transient_bytes > allowance_;
    }
  }

 private:
  int64_t allowance_of(int64_t budget_bytes) const {
    return budget_bytes - in_.device.reserve_bytes() - plain_.arenas.front().persistent_bytes;
  }

  void start(int64_t budget_bytes) {
    allowance_ = allowance_of(budget_bytes);
    program_ = in_.program;
    repeats_.assign(tracks_.size(), {});
    wants_step_.assign(tracks_.size(), false);
    for (size_t f = 0; f < tracks_.size(); ++f) {
      tracks_[f].candidates.clear();
      tracks_[f].next = 0;
      if (plain_.functions[f].transient_bytes <= allowance_) continue;
      wants_step_[f] = true;
      if (tracks_[f].orders.empty()) search(f);
      collect_candidates(tracks_[f]);
    }
  }

  void search(size_t f) {
    Track& track = tracks_[f];
    track.orders.push_back(in_.program.functions[f]);
    if (f < options_.other_orders.size()) {
      track.orders.push_back(in_.program.functions[f]);
      track.orders.back().reorder(options_.other_orders[f]);
    }
    RecomputeOptions options;
    options.seconds = options_.search_seconds / static_cast<double>(track.orders.size());
    for (Graph& order : track.orders) {
      delay_free_updates(order, in_.writers[f]);
      track.problems.push_back(recompute_problem(order, in_.writers[f], in_.device, in_.catalog));
      track.ladders.push_back(recompute_ladder(track.problems.back(), highest_allowance_, options));
    }
  }

  void collect_candidates(Track& track) const {
    for (size_t order = 0; order < track.ladders.size(); ++order)
      for (const RecomputePlan& plan : ladder_up_to(track.ladders[order], allowance_)) track.candidates.push_back({order, &plan});
    // The cheapest first. What is above the allowance may fit all the same once it is laid out; were it tried last, more budget
    // could take longer.
    std::stable_sort(track.candidates.begin(), track.candidates.end(),
                     [&](const Candidate& a, const Candidate& b) { return a.plan->added_us < b.plan->added_us; });
  }

  Status step(size_t f) {
    Track& track = tracks_[f];
    const Candidate& candidate = track.candidates[track.next++];
    program_.functions[f] = track.orders[candidate.order];
    repeats_[f] = apply_repeats(program_.functions[f], candidate.plan->repeats);
    return verify(program_.functions[f]);
  }

  Plan explained(Plan plan) const {
    for (size_t f = 0; f < tracks_.size(); ++f) {
      const Track& track = tracks_[f];
      if (track.next == 0) continue;
      const RecomputePlan& chosen = *track.candidates[track.next - 1].plan;
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
  const Plan& plain_;
  const FitOptions& options_;
  int64_t highest_allowance_;
  std::vector<Track> tracks_;
  // Of the budget that is being tried.
  int64_t allowance_ = 0;  // transient bytes a function may have
  Program program_;
  std::vector<std::vector<NodeId>> repeats_;
  std::vector<char> wants_step_;
};

// What is the same for every plan of a job.
Result<Plan> complete(Result<Plan> plan, const TrainingSummary& training) {
  if (!plan) return plan;
  plan->training = training;
  for (size_t f = 0; f < plan->functions.size(); ++f)
    for (const Instruction& instruction : plan->functions[f].instructions)
      plan->predicted_step_us += static_cast<double>(plan->calls_per_step(f)) * instruction.predicted_us;
  return plan;
}

}  // namespace

Result<Plan> fit_budget(const LoweringInput& input, const FitOptions& options) {
  Result<Plan> plan = complete(lower_to_plan(input), options.training);
  if (!plan || is_within_budget(*plan)) return plan;
  if (options.recompute) {
    int64_t budget = plan->arenas.front().budget_bytes;
    plan = complete(Fitter(input, *plan, options, budget).within(budget), options.training);
    if (!plan || is_within_budget(*plan)) return plan;
  }
  if (options.on_refused) options.on_refused(*plan);
  return over_budget(*plan);
}

Status budget_front(const LoweringInput& input, const FitOptions& options, llvm::function_ref<void(const Plan&)> visit) {
  constexpr int rows = 12;
  Result<Plan> plain = complete(lower_to_plan(input), options.training);
  if (!plain) return plain.takeError();
  const int64_t most = plain->promised_bytes();
  plain->arenas.front().budget_bytes = round_up_readable(most);
  if (!options.recompute) return visit(*plain), Status::success();
  Fitter fitter(input, *plain, options, most);
  Result<Plan> floor = fitter.within(1);
  if (!floor) return floor.takeError();
  const int64_t least = floor->promised_bytes();
  Plan last = *plain;  // shown once a smaller budget gives another
  for (int row = 1; row < rows; ++row) {
    Result<Plan> plan = complete(fitter.within(round_up_readable(most - (most - least) * row / (rows - 1))), options.training);
    if (!plan) return plan.takeError();
    if (!is_within_budget(*plan) || plan->promised_bytes() > last.promised_bytes()) continue;
    if (plan->promised_bytes() < last.promised_bytes()) visit(last);
    last = std::move(*plan);
  }
  visit(last);
  return Status::success();
}

}  // namespace plimsoll
