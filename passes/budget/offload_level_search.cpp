#include "passes/budget/offload_level_search.h"

// Plans and the intervals of their copies come from levels that do not depend on the budget, and neither does any
// number by which they are compared: the result is the fastest plan within the budget, and more budget never means more
// time.

#include "ir/plan/timeline.h"
#include "ir/support/align.h"
#include "ir/support/parallel.h"
#include "ir/verify.h"
#include "passes/analysis/transfer_waits.h"
#include "passes/budget/budget_report.h"
#include "passes/offload/offload_rewrite.h"
#include "passes/offload/update_pieces.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace plimsoll {
namespace {

constexpr size_t trials_at_once = 2;  // whose layouts are packed beside each other

bool wastes_much(const Plan& plan) {
  return llvm::any_of(plan.arenas, [](const Arena& arena) {
    const auto live = static_cast<double>(arena.peak_live_bytes - arena.persistent_bytes);
    return static_cast<double>(arena.bytes - arena.persistent_bytes) > max_waste * live;
  });
}

// Whether the placed plan takes the time it was chosen for. That of a stage depends on other stages.
[[maybe_unused]] bool is_time_of(const Plan& plan, size_t function, double us) {
  return std::abs(predict_timeline(plan.functions[function], plan.device).total_us - us) <= time_rounding * us;
}

}  // namespace

OffloadLevelSearch::OffloadLevelSearch(const LoweringInput& input, const FitOptions& options,
                                       const llvm::StringSet<>& on_host, int64_t plain_persistent_bytes,
                                       int64_t highest_budget, double search_seconds, bool is_last,
                                       OffloadLevelSearch* source)
    : in_(input),
      options_(options),
      highest_budget_(highest_budget),
      search_seconds_(search_seconds),
      is_last_(is_last),
      source_(source),
      offered_(source    ? source->offered_
               : is_last ? Offered::AlsoOfBackward
                         : Offered::SavedAlone),
      functions_(input.draft.functions.size()),
      cut_(on_host.empty() || llvm::any_of(input.draft.program.functions, meets_stages)
               ? UpdateCut()
               : choose_update_cut(input.draft, on_host)),
      persistent_bytes_(plain_persistent_bytes) {
  for (size_t f = 0; f < functions_.size(); ++f) {
    const llvm::ArrayRef<NodeId> other_order = in_.draft.functions[f].other_order;
    const bool has_other = options_.both_orders && !other_order.empty();
    llvm::SmallVector<bool, 2> is_other;
    if (!options_.is_short || !has_other) is_other.push_back(false);
    if (has_other) is_other.push_back(true);
    std::vector<OrderVariant>& orders = functions_[f].orders;
    orders.resize(is_other.size());
    parallel_for(orders.size(), [&](size_t i) {
      Graph graph = in_.draft.program.functions[f];
      if (is_other[i]) graph.reorder(other_order);
      orders[i] = make_order(std::move(graph), f, on_host);
    });
  }
  measure();
}

OrderVariant OffloadLevelSearch::make_order(Graph graph, size_t function, const llvm::StringSet<>& on_host) const {
  OrderVariant order{std::move(graph), in_.draft.functions[function].writers, {}, 0, {}, 0};
  if (cut_.whole_bytes > 0) update_in_pieces(order.graph, order.writers, on_host, *in_.draft.catalog, cut_);
  move_states_to_host(order.graph, order.writers, on_host);
  if (options_.recompute) delay_free_updates(order.graph, order.writers);
  order.host_room = room_on_host(order.graph);
  order.sequence = graph_remat_problem(order.graph, order.writers, in_.draft.device, *in_.draft.catalog,
                                       options_.offload && options_.recompute ? order.host_room : 0, offered_);
  order.levels.emplace_back().push_back(candidate(order.sequence.problem, measure_remats(order.sequence.problem, {})));
  order.min_us = order.levels[0][0].min_us;
  return order;
}

// Host bytes that are left for values once the states have theirs.
int64_t OffloadLevelSearch::room_on_host(const Graph& graph) const {
  if (in_.host_budget_bytes == 0) return std::numeric_limits<int64_t>::max();
  int64_t room = in_.host_budget_bytes;
  for (const State& state : graph.states)
    if (state.space == MemorySpace::Host)
      room -= align_up(graph.type(state.value).bytes(), in_.draft.device.alignment_bytes);
  return room;
}

void OffloadLevelSearch::measure() {
  llvm::StringSet<> counted;
  int64_t step_bytes = 0;
  for (size_t f = 0; f < functions_.size(); ++f) {
    const OrderVariant& order = functions_[f].orders.front();
    for (const State& state : order.graph.states) {
      const Value& value = order.graph.value(state.value);
      if (!counted.insert(value.name).second) continue;
      if (state.space == MemorySpace::Device) continue;
      const int64_t bytes = align_up(value.type.bytes(), in_.draft.device.alignment_bytes);
      host_bytes_ += bytes;
      persistent_bytes_ -= bytes;
    }
    int64_t peak_bytes = std::numeric_limits<int64_t>::max();
    for (const OrderVariant& either : functions_[f].orders) {
      peak_bytes = std::min(peak_bytes, options_.recompute ? min_peak_bytes(either.sequence.problem)
                                                           : either.levels[0][0].plan.peak_bytes);
    }
    min_us_ += min_us_of(f);
    step_bytes = std::max(step_bytes, peak_bytes);
  }
  min_bytes_ = in_.draft.device.reserve_bytes() + persistent_bytes_ + step_bytes;
}

Result<Plan> OffloadLevelSearch::lower(int64_t budget_bytes) {
  draft_.emplace(Program{}, in_.draft.device, *in_.draft.catalog);
  for (const FunctionSearch& function : functions_) {
    TriedFunction tried = apply(function.chosen);
    draft_->device = draft_->device.with_more_collectives(repeated_collectives(tried));
    if (Status s = verify(tried.graph)) return s;
    tried.draft.placement = function.chosen.layout().placement;
    if (const PackedOverlap* packed = function.chosen.packed)
      tried.draft.placement =
          placement_of(packed->copies, tried.graph,
                       assign_buffers(tried.graph, tried.draft.writers, tried.draft.copies, *in_.draft.catalog),
                       in_.draft.device.alignment_bytes);
    draft_->program.functions.push_back(std::move(tried.graph));
    draft_->functions.push_back(std::move(tried.draft));
  }
  const LoweringInput input{*draft_, budget_bytes, in_.host_budget_bytes, in_.placement_seconds, Parts::Copied};
  if (llvm::none_of(draft_->program.functions, meets_stages)) return lower_to_plan(input);
  // All stages together are searched for as long as one rank, which leaves little for layouts that are low enough.
  Result<QuickPlan> quick = lower_quickly(input);
  if (!quick) return quick.takeError();
  return quick->is_final || !wastes_much(quick->plan) ? std::move(quick->plan) : lower_to_plan(input);
}

Result<std::optional<Plan>> OffloadLevelSearch::fastest(int64_t budget_bytes, double enough_us, double hidden_us) {
  allowance_ = allowance(budget_bytes);
  const bool is_whole_step = functions_.size() == 1 && calls_of(0) == 1;
  hidden_us_ = is_whole_step && hidden_us < enough_us ? hidden_us : 0;
  bool are_chosen = true;
  for (size_t f = 0; f < functions_.size() && are_chosen; ++f) {
    are_chosen = choose(f, enough_us - (min_us_ - min_us_of(f)));
    if (f == 0 && are_chosen) allowance_ -= functions_[f].chosen.layout().windows_bytes;
  }
  drop_bounds();
  if (!are_chosen) return std::nullopt;
  Result<Plan> plan = chosen_plan(budget_bytes, true);
  if (!plan) return plan.takeError();
  return std::optional(std::move(*plan));
}

// The fastest trial that fits; false where there is none that takes less than `enough_us` of a step. A trial that is
// too high takes long to pack, so once there was one, the next is tried beside it. It counts only if nothing else comes
// before it by then, so the result is that of one after the other.
bool OffloadLevelSearch::choose(size_t f, double enough_us) {
  FunctionSearch& function = functions_[f];
  const auto is_first = [&](const Trial& trial) {
    return function.options.empty() || !is_later(trial, function.options.front());
  };
  start(function);
  for (;;) {
    size_t at_once = 1;
    for (;;) {
      const std::vector<Trial> trials = next_trials(function, enough_us / calls_of(f), at_once);
      if (trials.empty()) break;
      std::vector<TriedLayout> tried(trials.size());
      parallel_for(trials.size(), [&](size_t i) { tried[i] = try_layout(trials[i]); });
      for (size_t i = 0; i < trials.size(); ++i) {
        if (i > 0 && !is_first(trials[i])) {
          push(function, trials[i]);
          continue;
        }
        if (tried[i].fits) {
          const std::optional<Trial> lower = pressed_hard(trials[i]);
          if (!lower) {
            function.chosen = trials[i];
            return true;
          }
          push(function, *lower);
          continue;
        }
        if (tried[i].is_too_high) at_once = trials_at_once;
        for (const Trial& lower : tried[i].lower) push(function, lower);
      }
    }
    if (function.searched || !options_.recompute || !function.options.empty()) return false;
    search(function);
    collect(function);
  }
}

// They take megabytes, and many levels are looked at.
void OffloadLevelSearch::drop_bounds() {
  for (FunctionSearch& function : functions_)
    for (OrderVariant& order : function.orders)
      for (GroupedPlans& plans : order.grouped) plans.bound_us.reset();
}

void OffloadLevelSearch::prepare_smallest(int64_t budget_bytes) {
  allowance_ = allowance(budget_bytes);
  hidden_us_ = 0;
  for (FunctionSearch& function : functions_) {
    start(function);
    if (function.searched) search_all_groups(function);
  }
}

std::optional<int64_t> OffloadLevelSearch::lowest_live_bytes() const {
  if (!lowest_transient_bytes_) return std::nullopt;
  return in_.draft.device.reserve_bytes() + persistent_bytes_ + *lowest_transient_bytes_;
}

Result<std::optional<Plan>> OffloadLevelSearch::smallest(int64_t budget_bytes, int64_t enough_bytes) {
  allowance_ = allowance(budget_bytes);
  hidden_us_ = 0;
  const bool any_is_less = enough_bytes == std::numeric_limits<int64_t>::max();
  const int64_t enough = any_is_less ? enough_bytes : allowance(enough_bytes);
  bool all_fit = true;
  for (size_t f = 0; f < functions_.size(); ++f) {
    if (choose(f, std::numeric_limits<double>::infinity())) continue;
    // Its layout is known exactly, and may be lower than the live bytes for which the search passed it over.
    const std::optional<Trial> least = least_of(functions_[f], enough);
    if (!least) return std::nullopt;
    functions_[f].chosen = *least;
    all_fit &= fits(functions_[f].chosen);
  }
  Result<Plan> plan = chosen_plan(budget_bytes, all_fit);
  if (!plan) return plan.takeError();
  return std::optional(std::move(*plan));
}

Result<Plan> OffloadLevelSearch::chosen_plan(int64_t budget_bytes, [[maybe_unused]] bool fits) {
  Result<Plan> plan = lower(budget_bytes);
  if (!plan) return plan.takeError();
  for (size_t f = 0; f < functions_.size(); ++f)
    assert((meets_stages(draft_->program.functions[f]) || is_time_of(*plan, f, functions_[f].chosen.us)) &&
           "more budget may mean more time");
  // A layout whose copies could give way was not searched to its end, and may turn out lower than it was measured.
  assert((is_within_budget(*plan) || !fits) && "the functions were measured as they are laid out");
  return plan;
}

}  // namespace plimsoll
