#pragma once

// Lays a scheduled program out within a budget: as it is where that fits, otherwise with the cheapest mix of
// rematerialised instructions, values that wait on the host, and states that live there.

#include "passes/budget/offload_level_search.h"
#include "passes/budget/plain_plan.h"
#include "passes/offload/offload_rewrite.h"

#include <limits>
#include <memory>
#include <optional>

namespace plimsoll {

// The plan without remats or copies, within the budget or not.
Result<Plan> plain_plan(const LoweringInput& input, const FitOptions& options);
// The same with quick layouts: it takes the same time and needs as much, or more.
Result<QuickPlan> quick_plain_plan(const LoweringInput& input, const FitOptions& options);

// Whether a search that ends at `options.min_share` can reach the budget. If it can, it also reaches larger ones.
bool may_fit(const FitOptions& options, const PlainPlan& plain, int64_t budget_bytes);

// The plans of one program under several budgets; what was searched for one serves the next.
class BudgetFitter {
 public:
  // What is given outlives it; `plain` is the plain_plan of the others. Budgets up to `highest_budget` may be asked
  // for.
  BudgetFitter(const LoweringInput& input, const FitOptions& options, const PlainPlan& plain, int64_t highest_budget);

  // The fastest plan within the budget; where there is none, the one that needs least. With a finite `enough_us` none
  // but a plan within the budget that takes less.
  Result<std::optional<Plan>> within(int64_t budget_bytes, double enough_us = std::numeric_limits<double>::infinity());
  // The two parts of that. Of the second none where bounds show that every plan needs `enough_bytes` or more.
  Result<std::optional<Plan>> fastest(int64_t budget_bytes, double enough_us);
  Result<std::optional<Plan>> smallest(int64_t budget_bytes,
                                       int64_t enough_bytes = std::numeric_limits<int64_t>::max());
  // Live bytes of the lowest plan that `smallest` looked at; none where it looked at none.
  std::optional<int64_t> lowest_live_bytes() const;
  // Searches what `smallest` starts from, whatever is enough.
  void prepare_smallest(int64_t budget_bytes);
  // No plan needs fewer bytes of the device.
  int64_t min_bytes();
  // Whether a plan with states on the host may take less than the plain one.
  bool may_beat_plain() const;
  // About how long plans within the budget take at least, by bounds of the levels that are searched; those between them
  // take as long or a little less.
  double likely_us_within(int64_t budget_bytes);

 private:
  // States that are on the host together: the first so many of those that may be.
  struct OffloadLevel {
    size_t states = 0;
    int64_t bytes = 0;
    size_t source = 0;  // the level at which remats and copies of values are searched for: itself, or one with more
    friend bool operator==(const OffloadLevel&, const OffloadLevel&) = default;
  };
  enum class Levels : uint8_t { Searched, All };
  std::vector<OffloadLevel> offload_levels(Levels wanted) const;
  std::vector<OffloadLevel> offload_levels(Levels wanted, int64_t plain_bytes) const;
  void add_levels_between();
  size_t searched_before(size_t level) const;
  int64_t persistent_bytes(size_t level) const;
  int64_t min_bytes_up_to(size_t level);
  std::vector<size_t> searched_levels() const;
  size_t take_least(std::vector<size_t>& levels);
  bool is_out_of_question(size_t level, int64_t budget_bytes, double enough_us);
  bool later_levels_take_longer() const;
  OffloadLevelSearch& search_of(size_t level);
  bool searches() const { return options_.recompute || options_.offload; }
  Plan explained(Plan plan, size_t level);
  std::string what_is_on_host(const OffloadLevel& level) const;

  const LoweringInput& in_;
  const FitOptions& options_;
  const PlainPlan& plain_;
  int64_t highest_budget_;
  std::vector<HostChoice> choices_;
  std::vector<OffloadLevel> levels_;
  bool has_levels_between_ = false;
  std::vector<std::unique_ptr<OffloadLevelSearch>> searches_;  // by level, made when first wanted
};

}  // namespace plimsoll
