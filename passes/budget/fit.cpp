#include "passes/budget/fit.h"

// How much of the states lives on the host is a levels of a few levels that does not depend on the budget; each level
// has its own search for what to repeat and what to let wait on the host.

#include "ir/plan/timeline.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"
#include "passes/budget/offload_level_search.h"
#include "passes/offload/state_offload.h"

namespace plimsoll {
namespace {

// What is the same for every plan of a job.
Result<Plan> complete(Result<Plan> plan, const TrainingSummary& training) {
  if (!plan) return plan;
  plan->training = training;
  for (size_t f = 0; f < plan->functions.size(); ++f)
    plan->predicted_step_us +=
        static_cast<double>(plan->calls_per_step(f)) * predict_timeline(plan->functions[f], plan->device).total_us;
  return plan;
}

// States that move to the host together, and all before them.
struct OffloadLevel {
  llvm::StringSet<> states;
  std::string what;
  int64_t bytes = 0;
};

// Of what the plain plan needs: a level that has less than this more than the one before has hardly other plans.
constexpr double min_step = 0.06;

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

// From none on, as far as the host's memory goes.
std::vector<OffloadLevel> offload_levels(llvm::ArrayRef<HostChoice> choices, int64_t host_budget_bytes) {
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
    if (host_budget_bytes > 0 && level.bytes > host_budget_bytes) break;
    if (level.states.size() > levels.back().states.size()) levels.push_back(std::move(level));
  }
  return levels;
}

// The first and the last stay, between them those that are far enough from the one before.
std::vector<OffloadLevel> thinned(std::vector<OffloadLevel> levels, int64_t plain_bytes) {
  const double step = min_step * static_cast<double>(plain_bytes);
  std::vector<OffloadLevel> kept;
  for (size_t i = 0; i < levels.size(); ++i)
    if (i == 0 || i + 1 == levels.size() || static_cast<double>(levels[i].bytes - kept.back().bytes) >= step)
      kept.push_back(std::move(levels[i]));
  return kept;
}

class Fitter {
 public:
  // Budgets up to `highest_budget` may be asked for.
  Fitter(const LoweringInput& input, const Plan& plain, const FitOptions& options, int64_t highest_budget)
      : in_(input), plain_(plain), options_(options), highest_budget_(highest_budget) {
    const bool way_to_host = input.device.to_host_gb_per_s > 0 && input.device.from_host_gb_per_s > 0;
    if (options.offload && way_to_host)
      levels_ =
          thinned(offload_levels(states_for_host(input.program, input.writers, input.device), input.host_budget_bytes),
                  plain.promised_bytes());
    else
      levels_.resize(1);
    searches_.resize(levels_.size());
  }

  // The fastest plan within the budget; where there is none, the one that needs least.
  Result<Plan> within(int64_t budget_bytes) {
    std::optional<Plan> best;
    for (size_t i = 0; i < levels_.size(); ++i) {
      OffloadLevelSearch& search = at(i);
      // OffloadLevel further on have these copies too, and more.
      if (best && is_within_budget(*best) && search.min_us() >= best->predicted_step_us) break;
      if (search.min_bytes() > budget_bytes && i + 1 < levels_.size()) continue;
      Result<Plan> plan = complete(search.within(budget_bytes), options_.training);
      if (!plan) return plan;
      if (!levels_[i].what.empty())
        plan->decisions.push_back(
            {"offload", "plan", levels_[i].what + " on the host",
             format_bytes(search.host_bytes()) + " there, reloaded before use; what is updated is copied back"});
      if (!best || is_better(*plan, *best)) best = std::move(*plan);
    }
    return std::move(*best);
  }

 private:
  OffloadLevelSearch& at(size_t i) {
    if (!searches_[i])
      searches_[i] = std::make_unique<OffloadLevelSearch>(
          in_, options_, levels_[i].states, plain_.arenas.front().persistent_bytes, highest_budget_,
          i == 0 ? options_.search_seconds : options_.search_seconds / 8);
    return *searches_[i];
  }

  const LoweringInput& in_;
  const Plan& plain_;
  const FitOptions& options_;
  int64_t highest_budget_;
  std::vector<OffloadLevel> levels_;
  std::vector<std::unique_ptr<OffloadLevelSearch>> searches_;  // by level, made when first wanted
};

}  // namespace

Result<Plan> plain_plan(const LoweringInput& input, const FitOptions& options) {
  return complete(lower_to_plan(input), options.training);
}

struct BudgetFitter::State {
  const FitOptions& options;
  Plan plain;
  Fitter fitter;

  State(const LoweringInput& input, const FitOptions& options, Plan given, int64_t highest_budget)
      : options(options), plain(std::move(given)), fitter(input, plain, options, highest_budget) {}
};

BudgetFitter::BudgetFitter(const LoweringInput& input, const FitOptions& options, Plan plain, int64_t highest_budget)
    : state_(std::make_unique<State>(input, options, std::move(plain), highest_budget)) {}
BudgetFitter::~BudgetFitter() = default;

const Plan& BudgetFitter::plain() const { return state_->plain; }

Result<Plan> BudgetFitter::within(int64_t budget_bytes) {
  Plan plain = state_->plain;
  plain.arenas.front().budget_bytes = budget_bytes;
  const bool may_add = state_->options.recompute || state_->options.offload;
  if (!may_add || is_within_budget(plain)) return plain;
  return state_->fitter.within(budget_bytes);
}

Result<Plan> fit_budget(const LoweringInput& input, const FitOptions& options) {
  Result<Plan> plan = plain_plan(input, options);
  if (!plan || is_within_budget(*plan)) return plan;
  const int64_t budget = plan->arenas.front().budget_bytes;
  plan = BudgetFitter(input, options, std::move(*plan), budget).within(budget);
  if (!plan || is_within_budget(*plan)) return plan;
  if (options.on_refused) options.on_refused(*plan);
  return over_budget(*plan, input.host_budget_bytes);
}

Status budget_frontier(Plan plain, llvm::function_ref<Result<Plan>(int64_t budget_bytes)> within,
                       llvm::function_ref<void(const Plan&)> visit) {
  constexpr int rows = 12;
  const int64_t most = plain.promised_bytes();
  plain.arenas.front().budget_bytes = round_up_readable(most);
  Result<Plan> floor = within(1);
  if (!floor) return floor.takeError();
  const int64_t least = floor->promised_bytes();
  Plan last = std::move(plain);  // shown once a smaller budget gives another
  for (int row = 1; row < rows; ++row) {
    Result<Plan> plan = within(round_up_readable(most - (most - least) * row / (rows - 1)));
    if (!plan) return plan.takeError();
    if (!is_within_budget(*plan) || plan->promised_bytes() > last.promised_bytes()) continue;
    if (plan->promised_bytes() < last.promised_bytes()) visit(last);
    last = std::move(*plan);
  }
  visit(last);
  return Status::success();
}

}  // namespace plimsoll
