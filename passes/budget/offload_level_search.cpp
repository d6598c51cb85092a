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
#include "passes/remat/remat_problem.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <limits>

namespace plimsoll {
namespace {

constexpr size_t levels_apart = 3;          // of plans that were found with other states on the host, every so many
constexpr double remats_only_share = 0.25;  // share of the work for remats alone, from which searches with copies start

enum : size_t { OfAnyValue, OfDearest, RematsOnly, Kinds };

bool has_copies(const RematProblem& problem) {
  return llvm::any_of(problem.ops, [](const RematOp& op) { return is_copy(op.engine); });
}

// Computing that the plan adds, without what it loses to copies.
double remats_us(const RematProblem& problem, const RematPlan& plan) {
  double us = 0;
  for (const Remat& remat : plan.remats)
    us += problem.ops[remat.op].engine == Engine::Compute ? problem.ops[remat.op].cost_us : 0;
  return us;
}

double compute_us(const RematProblem& problem) {
  double us = 0;
  for (const RematOp& op : problem.ops) us += op.engine == Engine::Compute ? op.cost_us : 0;
  return us;
}

// Whether the placed plan takes the time it was chosen for. That of a stage depends on other stages.
[[maybe_unused]] bool is_time_of(const Plan& plan, size_t function, double us) {
  return std::abs(predict_timeline(plan.functions[function], plan.device).total_us - us) <= time_rounding * us;
}

// What computing loses to the copies of states.
double lost_to_states_us(const RematProblem& problem) {
  double us = 0;
  for (const RematOp& op : problem.ops)
    if (is_copy(op.engine)) us += problem.compute_us(op);
  return us;
}

std::string milliseconds(double us) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f ms", us / 1e3);
  return text;
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

OffloadLevelSearch::OrderVariant OffloadLevelSearch::make_order(Graph graph, size_t function,
                                                                const llvm::StringSet<>& on_host) const {
  OrderVariant order{std::move(graph), in_.draft.functions[function].writers, {}, 0, {}, 0};
  if (cut_.whole_bytes > 0) update_in_pieces(order.graph, order.writers, on_host, *in_.draft.catalog, cut_);
  move_states_to_host(order.graph, order.writers, on_host);
  if (options_.recompute) delay_free_updates(order.graph, order.writers);
  order.host_room = room_on_host(order.graph);
  order.sequence = graph_remat_problem(order.graph, order.writers, in_.draft.device, *in_.draft.catalog,
                                       options_.offload && options_.recompute ? order.host_room : 0);
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

// What all calls of the function take of a step at least.
double OffloadLevelSearch::min_us_of(size_t function) const {
  double us = std::numeric_limits<double>::infinity();
  for (const OrderVariant& order : functions_[function].orders) us = std::min(us, order.min_us);
  return calls_of(function) * us;
}

// No plan of this order that has at most so many transient bytes adds less to its compute.
double OffloadLevelSearch::min_added_us_within(const OrderVariant& order, int64_t allowance) {
  const RematProblem& problem = order.sequence.problem;
  if (!has_copies(problem) && problem.offloads.empty()) return min_added_us(problem, allowance);
  return lost_to_states_us(problem) + PeakBound(problem).min_added_us(allowance, order.host_room);
}

// No plan of a group that is within the allowance takes less time.
double OffloadLevelSearch::min_us_of_group(const OrderVariant& order, GroupedPlans& plans, size_t group) const {
  const SearchedGroups& groups = *plans.groups;
  const RematProblem& problem = order.sequence.problem;
  if (!plans.bound_us)
    plans.bound_us = std::make_shared<const PeakBound>(order.from_source ? order.from_source->at_least(groups.problem())
                                                                         : groups.problem());
  const int64_t limit = std::min(allowance_, groups.highest_bytes(group));
  const double added_us =
      order.from_source ? plans.bound_us->min_added_us(limit) : plans.bound_us->min_added_us(limit, order.host_room);
  return std::max(order.min_us, compute_us(problem) + lost_to_states_us(problem) + added_us);
}

double OffloadLevelSearch::min_us_within(int64_t budget_bytes) const {
  double us = 0;
  for (size_t f = 0; f < functions_.size(); ++f) {
    double least_us = std::numeric_limits<double>::infinity();
    for (const OrderVariant& order : functions_[f].orders) {
      const double us_within = compute_us(order.sequence.problem) + min_added_us_within(order, allowance(budget_bytes));
      least_us = std::min(least_us, std::max(order.min_us, us_within));
    }
    us += calls_of(f) * least_us;
  }
  return us;
}

OffloadLevelSearch::Candidate OffloadLevelSearch::candidate(const RematProblem& problem, RematPlan plan) {
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
    std::vector<Candidate>& levels = order.levels.emplace_back();
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
  for (const std::vector<Candidate>& levels : source.levels) {
    std::vector<RematPlan> plans;
    for (const Candidate& candidate : levels) plans.push_back(candidate.plan);
    order.levels.push_back(every_third(order, plans));
  }
}

// Of plans of the source, highest level first, the lowest and every third above it.
std::vector<OffloadLevelSearch::Candidate> OffloadLevelSearch::every_third(const OrderVariant& order,
                                                                           llvm::ArrayRef<RematPlan> plans) {
  if (plans.empty()) return {};
  const double plain_us = compute_us(order.sequence.problem);
  std::vector<Candidate> taken;
  for (size_t i = (plans.size() - 1) % levels_apart; i < plans.size(); i += levels_apart) {
    RematPlan plan = (*order.from_source)(plans[i]);
    plan.peak_bytes = plans[i].peak_bytes;
    const double us = plain_us + remats_us(order.sequence.problem, plan);
    taken.push_back({std::move(plan), std::max(order.min_us, us), false, {}, 0, {{}}});
  }
  return taken;
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
  return lower_to_plan({*draft_, budget_bytes, in_.host_budget_bytes, in_.placement_seconds});
}

Result<std::optional<Plan>> OffloadLevelSearch::fastest(int64_t budget_bytes, double enough_us, double hidden_us) {
  allowance_ = allowance(budget_bytes);
  const bool is_whole_step = functions_.size() == 1 && calls_of(0) == 1;
  hidden_us_ = is_whole_step && hidden_us < enough_us ? hidden_us : 0;
  bool are_chosen = true;
  for (size_t f = 0; f < functions_.size() && are_chosen; ++f)
    are_chosen = choose(f, enough_us - (min_us_ - min_us_of(f)));
  drop_bounds();
  if (!are_chosen) return std::nullopt;
  Result<Plan> plan = chosen_plan(budget_bytes, true);
  if (!plan) return plan.takeError();
  return std::optional(std::move(*plan));
}

// They take megabytes, and many levels are looked at.
void OffloadLevelSearch::drop_bounds() {
  for (FunctionSearch& function : functions_)
    for (OrderVariant& order : function.orders)
      for (GroupedPlans& plans : order.grouped) plans.bound_us.reset();
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

Plan OffloadLevelSearch::explained(Plan plan) const {
  for (size_t f = 0; f < functions_.size(); ++f) {
    const Trial& chosen = functions_[f].chosen;
    const RematPlan& extra = chosen.candidate->plan;
    const RematProblem& problem = chosen.order->sequence.problem;
    const Graph& graph = draft_->program.functions[f];
    plan.fit.rematerialised += static_cast<int64_t>(extra.remats.size());
    if (!extra.remats.empty() || !extra.reloads.empty()) {
      const double added = chosen.us - compute_us(problem);
      char share[32];
      std::snprintf(share, sizeof(share), "%.2f %%", 100 * added / std::max(compute_us(problem), 1e-9));
      plan.decisions.push_back({"recompute", graph.name,
                                "rematerialise " + std::to_string(extra.remats.size()) + " instructions",
                                "adds " + milliseconds(added) + ", " + share +
                                    " of the function; nothing of this order within the budget adds less than " +
                                    milliseconds(min_added_us_within(*chosen.order, allowance_))});
    }
    explain_copies(plan, f);
    for (NodeId id : draft_->functions[f].added)
      plan.decisions.push_back({is_copy(graph.node(id).op->engine) ? "offload" : "recompute",
                                graph.value(graph.node(id).results[0]).name,
                                is_copy(graph.node(id).op->engine) ? graph.node(id).op->name.str() : "rematerialise",
                                graph.node(id).reason});
  }
  return plan;
}

void OffloadLevelSearch::explain_copies(Plan& plan, size_t function) const {
  const Overlap* overlap = functions_[function].chosen.overlap;
  if (!overlap) return;
  const Timeline time = predict_timeline(plan.functions[function], plan.device);
  const Graph& graph = draft_->program.functions[function];
  const int64_t collectives =
      llvm::count_if(graph.order(), [&](NodeId id) { return graph.node(id).op->engine == Engine::Ranks; });
  const int64_t copies = static_cast<int64_t>(overlap->intervals.size()) - collectives;
  const std::string beside = " beside " + milliseconds(time.total_us - time.stalled_us) +
                             " of computing, which waits " + milliseconds(time.stalled_us);
  if (copies > 0)
    plan.decisions.push_back(
        {"offload", graph.name, std::to_string(copies) + " copies",
         milliseconds(time.to_host_us) + " to the host and " + milliseconds(time.to_device_us) + " back" + beside});
  if (collectives > 0)
    plan.decisions.push_back(
        {"partition", graph.name, std::to_string(collectives) + " collectives", milliseconds(time.ranks_us) + beside});
}

}  // namespace plimsoll
