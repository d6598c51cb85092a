#include "passes/budget/offload_level_search.h"

// Which remats and copies of values a function's orders are searched for.

#include "ir/support/parallel.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace plimsoll {
namespace {

constexpr size_t levels_apart = 3;  // of plans that were found with other states on the host, every so many
// A problem with copies has one more level between those whose plans are tried for each so many ops.
constexpr size_t ops_of_close_levels = 4000;
constexpr double remats_only_share = 0.25;  // share of the work for remats alone, from which searches with copies start

enum : size_t { OfAnyValue, OfDearest, RematsOnly, Kinds };

// Computing that the plan adds, without what it loses to copies.
double remats_us(const RematProblem& problem, const RematPlan& plan) {
  double us = 0;
  for (const Remat& remat : plan.remats)
    us += problem.ops[remat.op].engine == Engine::Compute ? problem.ops[remat.op].cost_us : 0;
  return us;
}

}  // namespace

RematCandidate OffloadLevelSearch::candidate(const RematProblem& problem, RematPlan plan) {
  const double min_us = min_total_us(apply_to_problem(problem, plan));
  return {std::move(plan), min_us, true, {}, 0, {{}}};
}

void OffloadLevelSearch::search(FunctionSearch& function) {
  function.searched = true;
  if (source_) {
    FunctionSearch& source = source_->functions_[&function - functions_.data()];
    if (!source.searched) source_->search(source);
    for (size_t i = 0; i < function.orders.size(); ++i) take_levels(function.orders[i], source.orders[i]);
    return;
  }
  const double seconds = search_seconds_ / static_cast<double>(function.orders.size());
  parallel_for(function.orders.size(), [&](size_t i) { search(function.orders[i], seconds); });
}

// Searches three kinds of plans, beside each other: with copies of any value, with copies of the values the host has
// room for, and with remats alone. Near the limit the last are sometimes faster. Where no state is copied, they come
// first, and the others start from them.
void OffloadLevelSearch::search(OrderVariant& order, double seconds) const {
  if (is_long(order)) return group_levels(order, seconds);
  const RematProblem& problem = order.sequence.problem;
  const bool offload = !problem.offloads.empty();
  const bool start_from_remats = offload && !has_copies(problem);
  std::vector<RematPlan> found[Kinds];
  const auto starts = [&] {
    return start_from_remats ? llvm::ArrayRef(found[RematsOnly]) : llvm::ArrayRef<RematPlan>();
  };
  const auto find = [&](size_t kind) {
    if (kind == OfAnyValue && offload)
      found[kind] =
          remat_levels(with_offloads(problem, order.sequence.largest), highest_allowance(), work(seconds), starts());
    if (kind == OfDearest && !order.sequence.dearest.empty())
      found[kind] =
          remat_levels(with_offloads(problem, order.sequence.dearest), highest_allowance(), work(seconds), starts());
    if (kind == RematsOnly && searches_remats_only(offload))
      found[kind] = remat_levels(with_offloads(problem, {}),
                                 start_from_remats ? std::numeric_limits<int64_t>::max() : highest_allowance(),
                                 work(offload ? remats_only_share * seconds : seconds));
  };
  if (start_from_remats) find(RematsOnly);
  parallel_for(start_from_remats ? RematsOnly : Kinds, find);
  order.levels.clear();
  for (std::vector<RematPlan>& plans : found) {
    if (plans.empty()) continue;
    std::vector<RematCandidate>& levels = order.levels.emplace_back();
    for (RematPlan& plan : plans) levels.push_back(candidate(problem, std::move(plan)));
  }
}

RematOptions OffloadLevelSearch::work(double seconds) const {
  return {.seconds = seconds,
          .min_share = options_.min_share,
          .spacing = options_.spacing,
          .close_levels = true,
          .is_deep = is_last_ && !options_.is_short,
          .is_one_of_many = options_.is_one_of_many};
}

// Plans with copies seldom need more than those without, but for a single sample, whose values are small.
bool OffloadLevelSearch::searches_remats_only(bool offload) const {
  return !offload || !options_.is_short || options_.training.batch <= 1;
}

// The same kinds for a long order, but each group of levels is searched once nothing faster is left to try. The plain
// order stays the first of the levels.
void OffloadLevelSearch::group_levels(OrderVariant& order, double seconds) const {
  const RematProblem& problem = order.sequence.problem;
  const bool offload = !problem.offloads.empty();
  std::shared_ptr<SearchedGroups> remats_only;
  const auto add = [&](std::vector<OffloadOption> offloads, double work_seconds,
                       std::shared_ptr<SearchedGroups> starts) {
    auto groups = std::make_shared<SearchedGroups>(with_offloads(problem, std::move(offloads)), work(work_seconds),
                                                   highest_allowance(), std::move(starts));
    order.grouped.push_back({groups, std::vector<bool>(groups->count(), false)});
    return groups;
  };
  if (searches_remats_only(offload)) remats_only = add({}, offload ? remats_only_share * seconds : seconds, nullptr);
  const std::shared_ptr<SearchedGroups> starts = has_copies(problem) ? nullptr : remats_only;
  if (offload) add(order.sequence.largest, seconds, starts);
  if (!order.sequence.dearest.empty()) add(order.sequence.dearest, seconds, starts);
}

// The peaks are those of the source, where more is on the host and no peak is lower by much; the times are bounds.
void OffloadLevelSearch::take_levels(OrderVariant& order, const OrderVariant& source) {
  order.from_source =
      std::make_shared<const RematTranslation>(source.graph, source.sequence, order.graph, order.sequence);
  for (const GroupedPlans& kind : source.grouped)
    order.grouped.push_back({kind.groups, std::vector<bool>(kind.is_taken.size(), false)});
  if (!source.grouped.empty()) return;
  for (const std::vector<RematCandidate>& levels : source.levels) {
    std::vector<RematPlan> plans;
    for (const RematCandidate& candidate : levels) plans.push_back(candidate.plan);
    order.levels.push_back(every_third(order, plans));
  }
}

// Copies fill what a level leaves free, so plans of neighbouring levels take about as long: those of Qwen2 72B with all
// states on the host differ by 0.3 % within a group, and each takes seconds to place.
size_t OffloadLevelSearch::levels_apart_of(const RematProblem& problem) {
  return has_copies(problem) ? 1 + static_cast<size_t>(problem.op_count()) / ops_of_close_levels : 1;
}

// Of plans of the source, highest level first, the lowest and every third above it.
std::vector<RematCandidate> OffloadLevelSearch::every_third(const OrderVariant& order,
                                                            llvm::ArrayRef<RematPlan> plans) {
  if (plans.empty()) return {};
  const double plain_us = compute_us(order.sequence.problem);
  std::vector<RematCandidate> taken;
  for (size_t i = (plans.size() - 1) % levels_apart; i < plans.size(); i += levels_apart) {
    RematPlan plan = (*order.from_source)(plans[i]);
    plan.peak_bytes = plans[i].peak_bytes;
    const double us = plain_us + remats_us(order.sequence.problem, plan);
    taken.push_back({std::move(plan), std::max(order.min_us, us), false, {}, 0, {{}}});
  }
  return taken;
}

// Adds plans of a group to the levels of its order: the lowest, and those `apart` above it. Where the way down ends
// above it, the last group that it gets to has the plans for lower levels.
std::vector<RematCandidate>& OffloadLevelSearch::take_group(FunctionSearch& function, const OrderVariant& from,
                                                            size_t kind, size_t group, size_t apart) const {
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
  std::vector<RematCandidate>& levels = order.levels.emplace_back();
  if (order.from_source) return levels = every_third(order, plans);
  for (size_t i = 0; i < plans.size(); ++i)
    if ((plans.size() - 1 - i) % apart == 0) levels.push_back(candidate(order.sequence.problem, std::move(plans[i])));
  return levels;
}

// Adds plans that are not among the levels of the order yet.
void OffloadLevelSearch::add_missing(OrderVariant& order, llvm::ArrayRef<RematPlan> plans) {
  std::vector<RematCandidate> missing;
  for (const RematPlan& plan : plans) {
    const bool is_there = llvm::any_of(order.levels, [&](const std::vector<RematCandidate>& levels) {
      return llvm::any_of(levels, [&](const RematCandidate& other) {
        return other.plan.remats == plan.remats && other.plan.reloads == plan.reloads;
      });
    });
    if (!is_there) missing.push_back(candidate(order.sequence.problem, plan));
  }
  order.levels.push_back(std::move(missing));
}

// All plans of groups, also those above the highest budget that may need as little as the lowest. Kinds of plans are
// searched beside each other, those with copies first, since they take longest.
void OffloadLevelSearch::search_all_groups(FunctionSearch& function) const {
  if (std::exchange(function.has_all_groups, true)) return;
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
  std::vector<Kind*> longest_first;
  for (Kind& each : kinds) longest_first.push_back(&each);
  llvm::stable_sort(longest_first, [](const Kind* a, const Kind* b) {
    return a->searched().problem().offloads.size() > b->searched().problem().offloads.size();
  });
  parallel_for(kinds.size(), [&](size_t i) {
    Kind& each = *longest_first[i];
    for (size_t group : each.groups) static_cast<void>(each.searched().plans(group));
    each.close = each.searched().close_plans();
  });
  for (Kind& each : kinds) {
    for (size_t group : each.groups)
      if (!each.order.grouped[each.kind].is_taken[group])
        take_group(function, each.order, each.kind, group, 1);
      else if (levels_apart_of(each.order.sequence.problem) > 1)
        add_missing(each.order, each.searched().plans(group));
    for (const std::vector<RematPlan>& close : each.close) add_missing(each.order, close);
  }
}

}  // namespace plimsoll
