#include "passes/budget/fit.h"

// The states on the host form a few levels that do not depend on the budget; each level has its own search for what to
// rematerialise and which values wait on the host.

#include "ir/plan/summary.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"
#include "passes/offload/offload_rewrite.h"

#include <cmath>

namespace plimsoll {
namespace {

// Fills in what is the same for every plan of a job.
Result<Plan> complete(Result<Plan> plan, const TrainingSummary& training) {
  if (!plan) return plan;
  plan->training = training;
  plan->predicted_step_us = predict_step_us(*plan);
  return plan;
}

// Minimum gap between two levels, as a share of the plain plan's bytes; closer levels rarely give another plan.
constexpr double min_step = 0.06;

// A level with states on the host searches for an eighth of the time: six of them together take less than the first.
constexpr double level_effort_divisor = 8;

struct Share {
  StateRole role;
  double share;  // of the role's bytes, with all of the roles before
  const char* what;
};
constexpr Share shares[] = {
    {StateRole::Optimizer, 1 / 3., "a third of the optimizer state"},
    {StateRole::Optimizer, 2 / 3., "two thirds of the optimizer state"},
    {StateRole::Optimizer, 1, "the optimizer state"},
    {StateRole::Gradient, 1, "the optimizer state and the accumulated gradients"},
    {StateRole::Parameter, 0.5, "the optimizer state, the accumulated gradients and half the parameters"},
    {StateRole::Parameter, 1, "all states"},
};

}  // namespace

Result<Plan> plain_plan(const LoweringInput& input, const FitOptions& options) {
  return complete(lower_to_plan(input), options.training);
}

bool may_fit(const FitOptions& options, const Plan& plain, int64_t budget_bytes) {
  if (options.min_share == 0) return true;
  const Arena& arena = plain.arenas.front();
  const auto live = static_cast<double>(arena.bytes - arena.persistent_bytes);
  return plain.promised_bytes() - static_cast<int64_t>((1 - options.min_share) * live) <= budget_bytes;
}

BudgetFitter::BudgetFitter(const LoweringInput& input, const FitOptions& options, Plan plain, int64_t highest_budget)
    : in_(input), options_(options), plain_(std::move(plain)), highest_budget_(highest_budget), levels_(1) {
  const bool way_to_host = input.draft.device.to_host_gb_per_s > 0 && input.draft.device.from_host_gb_per_s > 0;
  if (options.offload && way_to_host) levels_ = offload_levels(input, plain_.promised_bytes());
  searches_.resize(levels_.size());
}

// From no state to all that the host has room for. The first and the last level stay, and between them those that are
// far enough from the one before.
std::vector<BudgetFitter::OffloadLevel> BudgetFitter::offload_levels(const LoweringInput& input, int64_t plain_bytes) {
  const std::vector<HostChoice> choices = states_for_host(input.draft);
  std::vector<OffloadLevel> levels(1);
  for (const Share& share : shares) {
    int64_t whole = 0, moved = 0;
    for (const HostChoice& choice : choices)
      if (choice.role == share.role) whole += choice.bytes;
    OffloadLevel level{levels.back().states, share.what, 0};
    for (const HostChoice& choice : choices) {
      if (level.states.contains(choice.state)) level.bytes += choice.bytes;
      if (choice.role != share.role || static_cast<double>(moved) >= share.share * static_cast<double>(whole)) continue;
      if (level.states.insert(choice.state).second) level.bytes += choice.bytes;
      moved += choice.bytes;
    }
    if (input.host_budget_bytes > 0 && level.bytes > input.host_budget_bytes) break;
    if (level.states.size() > levels.back().states.size()) levels.push_back(std::move(level));
  }

  const double step = min_step * static_cast<double>(plain_bytes);
  std::vector<OffloadLevel> kept;
  for (size_t i = 0; i < levels.size(); ++i)
    if (i == 0 || i + 1 == levels.size() || static_cast<double>(levels[i].bytes - kept.back().bytes) >= step)
      kept.push_back(std::move(levels[i]));
  return kept;
}

Result<std::optional<Plan>> BudgetFitter::within(int64_t budget_bytes, double enough_us) {
  if (!(options_.recompute || options_.offload) || plain_.promised_bytes() <= budget_bytes)
    return with_budget(plain_, budget_bytes);
  std::optional<Plan> best;
  std::vector<size_t> too_large;
  for (size_t i = 0; i < levels_.size(); ++i) {
    OffloadLevelSearch& search = search_of(i);
    // Later levels have these copies too, and more.
    if (search.min_us() >= enough_us) break;
    const double min_us = search.min_bytes() > budget_bytes ? std::numeric_limits<double>::infinity()
                                                            : search.min_us_within(budget_bytes);
    if (min_us == std::numeric_limits<double>::infinity()) too_large.push_back(i);
    if (min_us >= enough_us || !std::isfinite(min_us)) continue;
    Result<std::optional<Plan>> plan = plan_of(i, budget_bytes, enough_us);
    if (!plan) return plan.takeError();
    if (!*plan) continue;
    if (!best || is_better(**plan, *best)) best = std::move(**plan);
    if (is_within_budget(*best)) enough_us = std::min(enough_us, best->predicted_step_us);
  }
  if (enough_us < std::numeric_limits<double>::infinity()) return best;
  // The plan that needs least may be of a level that cannot be within the budget; mostly of the last.
  for (size_t i : llvm::reverse(too_large)) {
    if (best && is_within_host_budget(*best) && search_of(i).min_bytes() >= best->promised_bytes()) continue;
    Result<std::optional<Plan>> plan = plan_of(i, budget_bytes, enough_us);
    if (!plan) return plan.takeError();
    if (!best || is_better(**plan, *best)) best = std::move(**plan);
  }
  return best;
}

Result<std::optional<Plan>> BudgetFitter::plan_of(size_t level, int64_t budget_bytes, double enough_us) {
  OffloadLevelSearch& search = search_of(level);
  Result<std::optional<Plan>> found = search.within(budget_bytes, enough_us);
  if (!found || !*found) return found;
  Result<Plan> plan = complete(std::move(**found), options_.training);
  if (plan && !levels_[level].what.empty())
    plan->decisions.push_back(
        {"offload", "plan", levels_[level].what + " on the host",
         format_bytes(search.host_bytes()) + " there, reloaded before use; what is updated is copied back"});
  if (!plan) return plan.takeError();
  return std::optional(std::move(*plan));
}

int64_t BudgetFitter::min_bytes() {
  int64_t bytes = plain_.promised_bytes();
  for (size_t i = 0; i < levels_.size(); ++i) bytes = std::min(bytes, search_of(i).min_bytes());
  return bytes;
}

OffloadLevelSearch& BudgetFitter::search_of(size_t level) {
  if (!searches_[level])
    searches_[level] = std::make_unique<OffloadLevelSearch>(
        in_, options_, levels_[level].states, plain_.arenas.front().persistent_bytes, highest_budget_,
        level == 0 ? options_.search_seconds : options_.search_seconds / level_effort_divisor);
  return *searches_[level];
}

}  // namespace plimsoll
