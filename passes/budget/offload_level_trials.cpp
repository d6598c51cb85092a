#include "passes/budget/offload_level_search.h"

// The budget bounds the arena, and only placement knows its height. So each function's plans are tried from the fastest
// on until one fits: its live bytes are a bound that skips most, greedy orders place most others, and only a plan whose
// live bytes fit and whose greedy height does not is placed with all the work that the final plan gets.

#include "ir/support/parallel.h"
#include "passes/analysis/transfer_waits.h"
#include "passes/budget/least_layout.h"
#include "passes/offload/offload_rewrite.h"
#include "passes/place/place_buffers.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

namespace plimsoll {
namespace {

constexpr size_t bounds_at_once = 2;  // trials whose copies are placed beside each other
constexpr double brief_share = 0.25;  // of the work for a layout that is only compared with others

// Whether copies or collectives run beside computing, whose time depends on where they are issued.
bool has_intervals(const RematProblem& problem) {
  return llvm::any_of(problem.ops, [](const RematOp& op) { return !op.computes(); });
}

// Lower bound of the host bytes that a plan's values take: each lives from its producer to its last reload.
int64_t host_bytes_of(const RematProblem& problem, const RematPlan& plan) {
  if (plan.reloads.empty()) return 0;
  std::vector<int32_t> last_reload(problem.value_bytes.size(), -1);
  for (const Reload& reload : plan.reloads) last_reload[reload.value] = reload.before;
  std::vector<int64_t> change(problem.ops.size() + 1, 0);
  for (int32_t o = 0; o < problem.op_count(); ++o)
    for (int32_t v : problem.ops[o].writes) {
      const int32_t last = last_reload[v];
      if (last < 0) continue;
      change[o] += problem.value_bytes[v];
      change[last] -= problem.value_bytes[v];
    }
  int64_t now = 0, most = 0;
  for (int64_t bytes : change) most = std::max(most, now += bytes);
  return most;
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
    for (std::vector<Candidate>& levels : order.levels) push_candidates(function, order, levels);
    for (size_t kind = 0; kind < order.grouped.size(); ++kind) push_group(function, order, kind);
  }
}

// Of a list of levels, the lowest ones up to where these end. A group of several may have none within the allowance.
void OffloadLevelSearch::push_candidates(FunctionSearch& function, const OrderVariant& order,
                                         std::vector<Candidate>& levels) {
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
    push_candidates(function, *trial.order, take_group(function, *trial.order, trial.kind, trial.group));
    push_group(function, *trial.order, trial.kind);
  }
}

// Adds the plans of a group to the levels of its order. Where the way down ends above it, the last group that it gets
// to has the plans for lower levels.
std::vector<OffloadLevelSearch::Candidate>& OffloadLevelSearch::take_group(FunctionSearch& function,
                                                                           const OrderVariant& from, size_t kind,
                                                                           size_t group) const {
  const auto place = static_cast<size_t>(&from - function.orders.data());
  OrderVariant& order = function.orders[place];
  GroupedPlans& kept = order.grouped[kind];
  std::vector<RematPlan> plans = kept.groups->plans(group);
  if (const size_t last = kept.groups->last_up_to(group); last < group) {
    const int64_t highest_bytes = kept.groups->highest_bytes(group);
    if (kept.is_taken[last]) plans.clear();
    llvm::erase_if(plans, [&](const RematPlan& plan) { return plan.level_bytes > highest_bytes; });
    std::fill(kept.is_taken.begin() + static_cast<ptrdiff_t>(group), kept.is_taken.end(), true);
  }
  kept.is_taken[group] = true;
  std::vector<Candidate>& levels = order.levels.emplace_back();
  if (order.from_source) return levels = every_third(order, plans);
  for (RematPlan& plan : plans) levels.push_back(candidate(order.sequence.problem, std::move(plan)));
  return levels;
}

// Also those above the highest budget whose plans may need as little as the lowest. Kinds of plans are searched beside
// each other.
void OffloadLevelSearch::search_all_groups(FunctionSearch& function) const {
  struct Kind {
    OrderVariant& order;
    size_t kind;
    std::vector<size_t> groups;                 // with levels within the highest budget
    std::vector<std::vector<RematPlan>> close;  // plans above it

    SearchedGroups& searched() const { return *order.grouped[kind].groups; }
  };
  std::vector<Kind> kinds;
  for (OrderVariant& order : function.orders)
    for (size_t kind = 0; kind < order.grouped.size(); ++kind) {
      std::vector<size_t> groups;
      for (size_t group = 0; group < order.grouped[kind].is_taken.size(); ++group)
        if (order.grouped[kind].groups->lowest_bytes(group) <= highest_allowance()) groups.push_back(group);
      kinds.push_back({order, kind, std::move(groups), {}});
    }
  const auto is_there = [](const OrderVariant& order, const RematPlan& plan) {
    return llvm::any_of(order.levels, [&](const std::vector<Candidate>& levels) {
      return llvm::any_of(levels, [&](const Candidate& other) {
        return other.plan.remats == plan.remats && other.plan.reloads == plan.reloads;
      });
    });
  };
  parallel_for(kinds.size(), [&](size_t i) {
    for (size_t group : kinds[i].groups) static_cast<void>(kinds[i].searched().plans(group));
    kinds[i].close = kinds[i].searched().close_plans();
  });
  for (Kind& each : kinds) {
    for (size_t group : each.groups)
      if (!each.order.grouped[each.kind].is_taken[group]) take_group(function, each.order, each.kind, group);
    for (std::vector<RematPlan>& close : each.close) {
      std::vector<Candidate> levels;
      for (RematPlan& plan : close)
        if (!is_there(each.order, plan)) levels.push_back(candidate(each.order.sequence.problem, std::move(plan)));
      each.order.levels.push_back(std::move(levels));
    }
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
llvm::ArrayRef<Overlap> OffloadLevelSearch::overlaps_of(const OrderVariant& order, Candidate& candidate,
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

bool OffloadLevelSearch::copies_or_collectives(const OrderVariant& order, const Candidate& candidate) {
  return !candidate.plan.reloads.empty() || has_intervals(order.sequence.problem);
}

bool OffloadLevelSearch::is_bound(const Trial& option) {
  return !is_group(option) && !option.overlap && copies_or_collectives(*option.order, *option.candidate);
}

OffloadLevelSearch::Trial OffloadLevelSearch::pop(FunctionSearch& function) {
  std::pop_heap(function.options.begin(), function.options.end(), is_later);
  const Trial option = function.options.back();
  function.options.pop_back();
  return option;
}

// Makes the bound's time that of the best bound known. False if it was.
bool OffloadLevelSearch::bring_close(Trial& bound) const {
  Candidate& candidate = *bound.candidate;
  if (bound.is_close || !candidate.overlaps.empty()) return false;
  const RematProblem applied = apply_to_problem(bound.order->sequence.problem, candidate.plan);
  if (!candidate.is_close) candidate.min_us = std::max(candidate.min_us, min_total_us(applied));
  candidate.is_close = bound.is_close = true;
  bound.us = std::max(candidate.min_us, min_total_us_within(applied, allowance_));
  return true;
}

// Takes the fastest trial; none where all take `too_long_us` or longer. Those whose times are only bounds go back with
// their exact times, a few at once.
std::optional<OffloadLevelSearch::Trial> OffloadLevelSearch::next(FunctionSearch& function, double too_long_us) {
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

OffloadLevelSearch::TriedFunction OffloadLevelSearch::apply(const Trial& trial) {
  TriedFunction tried{trial.order->graph, {}};
  tried.draft.writers = trial.order->writers;
  tried.draft.added = rematerialise(tried.graph, trial.candidate->plan, trial.order->sequence.values);
  tried.draft.copies = issue_copies(tried.graph, trial.overlap ? llvm::ArrayRef<CopyInterval>(trial.overlap->intervals)
                                                               : llvm::ArrayRef<CopyInterval>());
  llvm::append_range(tried.draft.copies, transfers_in_flight(tried.graph, tried.draft.writers));
  return tried;
}

// Collectives that run again, such as gathers of parameters that were dropped in between.
int64_t OffloadLevelSearch::repeated_collectives(const TriedFunction& tried) {
  return llvm::count_if(tried.draft.added, [&](NodeId id) { return tried.graph.node(id).op->engine == Engine::Ranks; });
}

// Measures what decides whether the trial is within the allowance, and nothing where its live bytes already say no.
void OffloadLevelSearch::measure(const Trial& trial, int64_t allowance, LayoutSearch search) const {
  Layout& layout = trial.layout();
  if (layout.live_bytes > allowance || layout.is_searched) return;
  const auto is_searched_on = [&] {
    return layout.height_bytes > allowance && search != LayoutSearch::Greedy && !is_well_packed(trial);
  };
  if (layout.height_bytes >= 0 && !is_searched_on()) return;
  const TriedFunction tried = apply(trial);
  const int64_t repeated_bytes = repeated_collectives(tried) * in_.draft.device.collective_graph_bytes;
  const BufferAssignment assigned =
      assign_buffers(tried.graph, tried.draft.writers, tried.draft.copies, *in_.draft.catalog);
  PlacementOptions options;
  options.alignment = in_.draft.device.alignment_bytes;
  options.seconds = in_.placement_seconds;
  const auto place = [&](MemorySpace space) {
    return place_buffers(assigned.buffers, space, assigned.instructions, options);
  };
  layout.live_bytes =
      peak_bytes(assigned.buffers, MemorySpace::Device, assigned.instructions, options.alignment) + repeated_bytes;
  if (layout.live_bytes > allowance) return;
  if (layout.host_bytes < 0 && in_.host_budget_bytes > 0) layout.host_bytes = place(MemorySpace::Host).height_bytes;
  if (trial.packed) {
    layout.height_bytes =
        placement_of(trial.packed->copies, tried.graph, assigned, options.alignment).height_bytes + repeated_bytes;
    layout.is_searched = true;
    return;
  }
  const auto keep = [&](BufferPlacement placement) {
    layout.height_bytes = placement.height_bytes + repeated_bytes;
    layout.placement = std::move(placement);
    layout.is_searched = true;
  };
  if (layout.height_bytes < 0) {
    bool goes_on = false;
    const auto ask = [&](int64_t height_bytes) {
      layout.height_bytes = height_bytes + repeated_bytes;
      return goes_on = search == LayoutSearch::Whole && is_searched_on();
    };
    options.goes_on = ask;
    BufferPlacement placement = place(MemorySpace::Device);
    if (goes_on) return keep(std::move(placement));
  }
  if (!is_searched_on()) return;
  options.goes_on = nullptr;
  if (search == LayoutSearch::Brief) {
    options.seconds *= brief_share;
    layout.brief_bytes = place(MemorySpace::Device).height_bytes + repeated_bytes;
    return;
  }
  keep(place(MemorySpace::Device));
}

// The layouts of a trial's copies, whatever the budget; null where they need none.
OffloadLevelSearch::PackedTry* OffloadLevelSearch::pack(const Trial& trial, PackedLayouts wanted) const {
  if (!trial.overlap || trial.packed || meets_stages(trial.order->graph)) return nullptr;
  Candidate& candidate = *trial.candidate;
  PackedTry& made = candidate.packed[static_cast<size_t>(trial.overlap - candidate.overlaps.data())];
  const bool wants_steps = wanted == PackedLayouts::Steps && !made.has_steps;
  if (made.was_made && !wants_steps) return &made;
  const TriedFunction in_place = apply({trial.order, trial.candidate, trial.us});
  const RematProblem problem = apply_to_problem(trial.order->sequence.problem, candidate.plan);
  const FunctionWithCopies function{in_place.graph, in_place.draft.writers, *in_.draft.catalog, problem};
  PlacementOptions options;
  options.alignment = in_.draft.device.alignment_bytes;
  options.seconds = in_.placement_seconds;
  if (!std::exchange(made.was_made, true))
    if (std::optional<PackedCopies> tight = pack_tightly(function, *trial.overlap, options))
      made.tight = {std::move(*tight), {}};
  if (wants_steps) {
    made.has_steps = true;
    if (made.tight)
      for (PackedCopies& copies : pack_step_by_step(function, *trial.overlap, made.tight->copies, options))
        made.steps.push_back({std::move(copies), {}});
  }
  return &made;
}

OffloadLevelSearch::Trial OffloadLevelSearch::packed_trial(const Trial& trial, PackedOverlap& packed) {
  const Overlap& overlap = packed.copies.overlap;
  return {trial.order, trial.candidate, std::max(trial.us, overlap.total_us), &overlap, false, &packed};
}

// The trial with intervals that its layout has room for: lower layouts with shorter ones. Empty where they need not or
// cannot be found.
std::vector<OffloadLevelSearch::Trial> OffloadLevelSearch::packed(const Trial& trial) const {
  std::vector<Trial> trials;
  if (PackedTry* made = pack(trial, PackedLayouts::Steps))
    for (PackedOverlap& packed : made->steps) trials.push_back(packed_trial(trial, packed));
  return trials;
}

// The one of these that is looked for alone.
std::optional<OffloadLevelSearch::Trial> OffloadLevelSearch::tightly_packed(const Trial& trial) const {
  PackedTry* made = pack(trial, PackedLayouts::Tight);
  return made && made->tight ? std::optional(packed_trial(trial, *made->tight)) : std::nullopt;
}

// Whether its copies gave way to a layout that wastes so little that no other is looked for.
bool OffloadLevelSearch::is_well_packed(const Trial& trial) const {
  const std::optional<Trial> tight = tightly_packed(trial);
  return tight && static_cast<double>(tight->packed->copies.height_bytes) <=
                      max_waste * static_cast<double>(trial.layout().live_bytes);
}

bool OffloadLevelSearch::is_wasteful(const Layout& layout) {
  return static_cast<double>(layout.height_bytes) > max_waste * static_cast<double>(layout.live_bytes);
}

bool OffloadLevelSearch::is_above_host(const Layout& layout) const {
  return in_.host_budget_bytes > 0 && host_bytes_ + layout.host_bytes > in_.host_budget_bytes;
}

bool OffloadLevelSearch::fits(const Trial& trial) const {
  measure(trial, allowance_);
  const Layout& layout = trial.layout();
  if (layout.live_bytes > allowance_ || layout.height_bytes > allowance_ || is_above_host(layout)) return false;
  return !gives_way(trial);
}

// Whether the same copies take fewer bytes and hardly more time where their intervals give way to the layout.
bool OffloadLevelSearch::gives_way(const Trial& trial) const {
  if (!is_wasteful(trial.layout())) return false;
  return llvm::any_of(packed(trial), [&](const Trial& packed) {
    return packed.us <= trial.us * max_slowdown && packed.packed->copies.height_bytes < trial.layout().height_bytes;
  });
}

// Whether the bytes that are alive are within the allowance, once `fits` has said no.
bool OffloadLevelSearch::is_only_too_high(const Trial& trial) const {
  const Layout& layout = trial.layout();
  return layout.live_bytes <= allowance_ && !is_above_host(layout);
}

// The trial that needs least, whatever the budget; none where all need `enough_bytes` or more.
std::optional<OffloadLevelSearch::Trial> OffloadLevelSearch::least_of(FunctionSearch& function,
                                                                      int64_t enough_bytes) const {
  search_all_groups(function);
  std::vector<Trial> candidates, trials;
  for (OrderVariant& order : function.orders)
    for (std::vector<Candidate>& levels : order.levels)
      for (Candidate& candidate : levels)
        if (host_bytes_of(order.sequence.problem, candidate.plan) <= order.host_room)
          candidates.push_back({&order, &candidate, candidate.min_us});
  parallel_for(candidates.size(), [&](size_t i) {
    const Trial& trial = candidates[i];
    if (copies_or_collectives(*trial.order, *trial.candidate))
      static_cast<void>(overlaps_of(*trial.order, *trial.candidate, std::numeric_limits<double>::infinity()));
  });
  for (const Trial& trial : candidates) {
    if (!copies_or_collectives(*trial.order, *trial.candidate)) trials.push_back(trial);
    for (const Overlap& overlap : trial.candidate->overlaps)
      trials.push_back({trial.order, trial.candidate, overlap.total_us, &overlap});
  }
  std::vector<int64_t> reckoned_bytes;
  for (const Trial& trial : trials)
    reckoned_bytes.push_back(trial.overlap ? trial.overlap->peak_bytes : trial.candidate->plan.peak_bytes);
  const auto need = [&](const Trial& trial) {
    return LayoutNeed{is_above_host(trial.layout()), trial.layout().compared_bytes()};
  };
  const auto live_bytes = [&](size_t i) {
    measure(trials[i], std::numeric_limits<int64_t>::max(), LayoutSearch::Greedy);
    return trials[i].layout().live_bytes;
  };
  const auto place = [&](size_t i) {
    measure(trials[i], trials[i].layout().live_bytes, options_.is_short ? LayoutSearch::Greedy : LayoutSearch::Brief);
    if (!is_wasteful(trials[i].layout())) return need(trials[i]);
    const std::optional<Trial> tight = tightly_packed(trials[i]);
    if (!tight) return need(trials[i]);
    measure(*tight, std::numeric_limits<int64_t>::max());
    if (is_well_packed(trials[i]) || need(*tight) < need(trials[i])) trials[i] = *tight;
    return need(trials[i]);
  };
  const auto finish = [&](size_t i) {
    if (!options_.is_short) measure(trials[i], trials[i].layout().live_bytes);
    return need(trials[i]);
  };
  const std::optional<size_t> least = least_layout(reckoned_bytes, enough_bytes, live_bytes, place, finish);
  return least ? std::optional(trials[*least]) : std::nullopt;
}

// The fastest trial that fits; false where there is none that takes less than `enough_us` of a step.
bool OffloadLevelSearch::choose(size_t f, double enough_us) {
  FunctionSearch& function = functions_[f];
  start(function);
  for (;;) {
    while (const std::optional<Trial> trial = next(function, enough_us / calls_of(f))) {
      if (fits(*trial)) {
        function.chosen = *trial;
        return true;
      }
      if (!is_only_too_high(*trial)) continue;
      for (const Trial& lower : packed(*trial))
        if (lower.packed->copies.height_bytes <= allowance_) push(function, lower);
    }
    if (function.searched || !options_.recompute || !function.options.empty()) return false;
    search(function);
    collect(function);
  }
}

}  // namespace plimsoll
