#include "passes/budget/offload_level_search.h"

// Which plan of a function is tried next: the one that takes the least time by what is known, which is a bound until
// its remats are searched and its copies have their intervals.

#include "ir/support/parallel.h"

#include <algorithm>
#include <atomic>

namespace plimsoll {
namespace {

constexpr size_t bounds_at_once = 2;  // trials whose copies are placed beside each other

// Whether copies or collectives run beside computing, whose time depends on where they are issued.
bool has_intervals(const RematProblem& problem) {
  return llvm::any_of(problem.ops, [](const RematOp& op) { return !op.computes(); });
}

}  // namespace

// Without copies and collectives nothing is faster than the plain order, so the search starts only once that has failed
// to fit.
void OffloadLevelSearch::start(FunctionSearch& function) {
  const OrderVariant& plain = function.orders.front();
  if (options_.recompute && !function.searched &&
      (has_intervals(plain.sequence.problem) || plain.levels[0][0].plan.peak_bytes > allowance_))
    search(function);
  collect(function);
}

// Collects what may be tried within the allowance.
void OffloadLevelSearch::collect(FunctionSearch& function) {
  function.options.clear();
  const bool plain_only = options_.recompute && !function.searched;
  for (OrderVariant& order :
       llvm::MutableArrayRef<OrderVariant>(function.orders).take_front(plain_only ? 1 : function.orders.size())) {
    for (std::vector<RematCandidate>& levels : order.levels) push_candidates(function, order, levels);
    for (size_t kind = 0; kind < order.grouped.size(); ++kind) push_group(function, order, kind);
  }
}

// Of a list of levels, the lowest ones up to where these end. A group of several may have none within the allowance.
void OffloadLevelSearch::push_candidates(FunctionSearch& function, const OrderVariant& order,
                                         std::vector<RematCandidate>& levels) {
  for (size_t c = levels.size(); c-- > 0;) {
    const RematPlan& plan = levels[c].plan;
    if (!order.grouped.empty() && plan.peak_bytes > allowance_) break;
    if (c + 1 < levels.size() && ends_levels(order.sequence.problem, plan, levels[c + 1].plan, allowance_)) break;
    if (host_bytes_of(order.sequence.problem, plan) > order.host_room) continue;
    push(function, {&order, &levels[c], levels[c].min_us});
  }
}

// Adds the first group of a kind that is not searched yet and has levels within the allowance.
void OffloadLevelSearch::push_group(FunctionSearch& function, const OrderVariant& order, size_t kind) {
  GroupedPlans& plans = function.orders[static_cast<size_t>(&order - function.orders.data())].grouped[kind];
  size_t group = 0;
  while (group < plans.is_taken.size() && (plans.is_taken[group] || plans.groups->lowest_bytes(group) > allowance_))
    ++group;
  if (group == plans.is_taken.size()) return;
  const double us = std::max(hidden_us_, min_us_of_group(order, plans, group));
  push(function, {&order, nullptr, us, nullptr, false, nullptr, kind, group});
}

// Searches the groups that are next to try, beside each other, and adds their plans. Where one is probably enough, it
// is the first alone.
void OffloadLevelSearch::search_groups(FunctionSearch& function, double too_long_us) {
  std::vector<Trial> next;
  while (!function.options.empty() && is_group(function.options.front()) && function.options.front().us < too_long_us &&
         (next.empty() || function.options.front().us > hidden_us_))
    next.push_back(pop(function));
  const auto groups_of = [](const Trial& trial) -> SearchedGroups& { return *trial.order->grouped[trial.kind].groups; };
  parallel_for(next.size(), [&](size_t i) { groups_of(next[i]).plans(next[i].group); });
  for (const Trial& trial : next) {
    const size_t apart = levels_apart_of(trial.order->sequence.problem);
    push_candidates(function, *trial.order, take_group(function, *trial.order, trial.kind, trial.group, apart));
    push_group(function, *trial.order, trial.kind);
  }
}

// Of two with equal times, the one whose time is exact and no bound is tried first, and what is searched already before
// what is not, remats alone before copies.
bool OffloadLevelSearch::is_later(const Trial& a, const Trial& b) {
  const auto rank = [](const Trial& trial) { return is_group(trial) ? 2 : trial.overlap ? 0 : 1; };
  return a.us != b.us ? a.us > b.us : std::pair(rank(a), a.kind) > std::pair(rank(b), b.kind);
}

void OffloadLevelSearch::push(FunctionSearch& function, Trial option) {
  function.options.push_back(option);
  std::push_heap(function.options.begin(), function.options.end(), is_later);
}

// The intervals of a candidate's copies, as levels; where it hardly takes less than `too_long_us`, one of them.
llvm::ArrayRef<Overlap> OffloadLevelSearch::overlaps_of(const OrderVariant& order, RematCandidate& candidate,
                                                        double too_long_us) const {
  if (candidate.overlaps.empty() || candidate.too_long_us < too_long_us) {
    const int64_t highest = std::max(highest_allowance(), close_to(candidate.plan.peak_bytes));
    candidate.overlaps = overlap_levels(apply_to_problem(order.sequence.problem, candidate.plan), highest, too_long_us);
    candidate.too_long_us = too_long_us;
    candidate.layouts.assign(candidate.overlaps.size(), {});
    candidate.packed.clear();
    candidate.packed.resize(candidate.overlaps.size());
  }
  return candidate.overlaps;
}

// Adds one trial for each level of intervals within the allowance, and always the one with the shortest intervals.
void OffloadLevelSearch::push_overlaps(FunctionSearch& function, const Trial& option, double too_long_us) {
  const llvm::ArrayRef<Overlap> overlaps = overlaps_of(*option.order, *option.candidate, too_long_us);
  for (const Overlap& overlap : overlaps) {
    if (&overlap != &overlaps.front() && overlap.limit_bytes > allowance_) break;
    const bool at_bound = overlap.total_us <= option.candidate->min_us * (1 + time_rounding);
    push(function, {option.order, option.candidate, at_bound ? option.candidate->min_us : overlap.total_us, &overlap});
  }
}

bool OffloadLevelSearch::copies_or_collectives(const OrderVariant& order, const RematCandidate& candidate) {
  return !candidate.plan.reloads.empty() || has_intervals(order.sequence.problem);
}

bool OffloadLevelSearch::is_bound(const Trial& option) {
  return !is_group(option) && !option.overlap && copies_or_collectives(*option.order, *option.candidate);
}

Trial OffloadLevelSearch::pop(FunctionSearch& function) {
  std::pop_heap(function.options.begin(), function.options.end(), is_later);
  const Trial option = function.options.back();
  function.options.pop_back();
  return option;
}

// Makes the bound's time that of the best bound known. False if it was.
bool OffloadLevelSearch::bring_close(Trial& bound) const {
  RematCandidate& candidate = *bound.candidate;
  if (bound.is_close || !candidate.overlaps.empty()) return false;
  const RematProblem applied = apply_to_problem(bound.order->sequence.problem, candidate.plan);
  if (!candidate.is_close) candidate.min_us = std::max(candidate.min_us, min_total_us(applied));
  candidate.is_close = bound.is_close = true;
  bound.us = std::max(candidate.min_us, min_total_us_within(applied, allowance_));
  return true;
}

// Takes the fastest trial; none where all take `too_long_us` or longer. Those whose times are only bounds go back with
// their exact times, a few at once.
std::optional<Trial> OffloadLevelSearch::next(FunctionSearch& function, double too_long_us) {
  while (!function.options.empty() && function.options.front().us < too_long_us) {
    if (is_group(function.options.front())) {
      search_groups(function, too_long_us);
      continue;
    }
    if (!is_bound(function.options.front())) return pop(function);
    std::vector<Trial> bounds;
    while (bounds.size() < bounds_at_once && !function.options.empty() && is_bound(function.options.front()) &&
           function.options.front().us < too_long_us)
      bounds.push_back(pop(function));
    std::atomic<bool> come_closer = false;
    parallel_for(bounds.size(), [&](size_t i) {
      if (bring_close(bounds[i])) come_closer = true;
    });
    if (come_closer) {
      for (const Trial& bound : bounds) push(function, bound);
      continue;
    }
    parallel_for(bounds.size(), [&](size_t i) {
      static_cast<void>(overlaps_of(*bounds[i].order, *bounds[i].candidate, too_long_us));
    });
    for (const Trial& bound : bounds) push_overlaps(function, bound, too_long_us);
  }
  return std::nullopt;
}

// The next trials, up to `count` of them, or up to one whose layout is known, since that takes no time to try.
std::vector<Trial> OffloadLevelSearch::next_trials(FunctionSearch& function, double too_long_us, size_t count) {
  std::vector<Trial> trials;
  while (trials.size() < count && (trials.empty() || !trials.back().packed)) {
    const std::optional<Trial> trial = next(function, too_long_us);
    if (!trial) break;
    trials.push_back(*trial);
  }
  return trials;
}

}  // namespace plimsoll
