#include "passes/budget/offload_level_search.h"

// The budget bounds the arena, and only placement knows its height. So each function's plans are tried from the fastest
// on until one fits once it is placed. Plans and the intervals of their copies come from levels that do not depend on
// the budget, and only proven bounds skip a plan: the result is the fastest plan within the budget, and more budget
// never means more time.

#include "ir/plan/timeline.h"
#include "ir/support/align.h"
#include "ir/support/parallel.h"
#include "ir/verify.h"
#include "passes/analysis/transfer_waits.h"
#include "passes/budget/budget_report.h"
#include "passes/offload/offload_rewrite.h"
#include "passes/remat/remat_problem.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <limits>

namespace plimsoll {
namespace {

constexpr double rounding = 1e-9;           // relative difference of a sum of times in another order
constexpr double remats_only_share = 0.25;  // share of the work for remats alone, from which searches with copies start

bool has_copies(const RematProblem& problem) {
  return llvm::any_of(problem.ops, [](const RematOp& op) { return is_copy(op.engine); });
}

// Whether copies or collectives run beside computing, whose time depends on where they are issued.
bool has_intervals(const RematProblem& problem) {
  return llvm::any_of(problem.ops, [](const RematOp& op) { return !op.computes(); });
}

double compute_us(const RematProblem& problem) {
  double us = 0;
  for (const RematOp& op : problem.ops) us += op.engine == Engine::Compute ? op.cost_us : 0;
  return us;
}

// Height of the host arena that a function needs.
int64_t host_bytes_of(const Plan& plan, size_t function) {
  int64_t bytes = 0;
  for (const Slot& slot : plan.slots)
    if (slot.space == MemorySpace::Host && slot.function == static_cast<int32_t>(function))
      bytes = std::max(bytes, slot.offset + slot.bytes);
  return align_up(bytes, plan.device.alignment_bytes);
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

// Whether the placed plan takes the time it was chosen for. That of a stage depends on other stages.
bool is_time_of(const Plan& plan, size_t function, double us) {
  return std::abs(predict_timeline(plan.functions[function], plan.device).total_us - us) <= rounding * us;
}

// Largest sum of bytes that one op touches; no plan needs less.
int64_t largest_step(const RematProblem& problem) {
  int64_t largest = 0;
  for (const RematOp& op : problem.ops) {
    int64_t bytes = op.workspace_bytes;
    for (int32_t value : op.reads) bytes += problem.value_bytes[value];
    for (int32_t value : op.writes) bytes += problem.value_bytes[value];
    for (const InPlaceReuse& pair : op.in_place) bytes -= problem.value_bytes[pair.written];
    largest = std::max(largest, bytes);
  }
  return largest;
}

std::string milliseconds(double us) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f ms", us / 1e3);
  return text;
}

}  // namespace

OffloadLevelSearch::OffloadLevelSearch(const LoweringInput& input, const FitOptions& options,
                                       const llvm::StringSet<>& on_host, int64_t plain_persistent_bytes,
                                       int64_t highest_budget, double search_seconds)
    : in_(input),
      options_(options),
      highest_budget_(highest_budget),
      search_seconds_(search_seconds),
      functions_(input.draft.functions.size()),
      persistent_bytes_(plain_persistent_bytes) {
  for (size_t f = 0; f < functions_.size(); ++f) {
    add_order(functions_[f], in_.draft.program.functions[f], f, on_host);
    if (in_.draft.functions[f].other_order.empty()) continue;
    Graph other = in_.draft.program.functions[f];
    other.reorder(in_.draft.functions[f].other_order);
    add_order(functions_[f], other, f, on_host);
  }
  measure();
}

void OffloadLevelSearch::add_order(FunctionSearch& search, const Graph& graph, size_t function,
                                   const llvm::StringSet<>& on_host) const {
  OrderVariant order{graph, in_.draft.functions[function].writers, {}, {}, 0};
  move_states_to_host(order.graph, order.writers, on_host);
  if (options_.recompute) delay_free_updates(order.graph, order.writers);
  order.host_room = room_on_host(order.graph);
  order.sequence = graph_remat_problem(order.graph, order.writers, in_.draft.device, *in_.draft.catalog,
                                       options_.offload && options_.recompute ? order.host_room : 0);
  order.levels.emplace_back().push_back(candidate(order.sequence.problem, measure_remats(order.sequence.problem, {})));
  search.orders.push_back(std::move(order));
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
    const double calls = f == 0 ? static_cast<double>(options_.training.accumulate) : 1;
    double min_us = std::numeric_limits<double>::infinity();
    for (const OrderVariant& either : functions_[f].orders) min_us = std::min(min_us, either.levels[0][0].min_us);
    min_us_ += calls * min_us;
    step_bytes = std::max(step_bytes, largest_step(order.sequence.problem));
  }
  min_bytes_ = in_.draft.device.reserve_bytes() + persistent_bytes_ + step_bytes;
}

OffloadLevelSearch::Candidate OffloadLevelSearch::candidate(const RematProblem& problem, RematPlan plan) {
  const double min_us = min_total_us(apply_to_problem(problem, plan));
  return {std::move(plan), min_us, {}};
}

void OffloadLevelSearch::search(FunctionSearch& function) {
  function.searched = true;
  const double seconds = search_seconds_ / static_cast<double>(function.orders.size());
  parallel_for(function.orders.size(), [&](size_t i) { search(function.orders[i], seconds); });
}

// Searches three kinds of plans: with copies of any value, with copies of the values the host has room for, and with
// remats alone. The last are the start of the others, and near the limit they are sometimes faster.
void OffloadLevelSearch::search(OrderVariant& order, double seconds) const {
  const RematProblem& problem = order.sequence.problem;
  const bool offload = !problem.offloads.empty();
  const bool start_from_remats = offload && !has_copies(problem);
  const auto work = [&](double share) {
    return RematOptions{.seconds = seconds * share, .min_share = options_.min_share, .spacing = options_.spacing};
  };
  const std::vector<RematPlan> remats_only = remat_levels(
      with_offloads(problem, {}), start_from_remats ? std::numeric_limits<int64_t>::max() : highest_allowance(),
      work(offload ? remats_only_share : 1));
  const llvm::ArrayRef<RematPlan> starts =
      llvm::ArrayRef(remats_only).take_front(start_from_remats ? remats_only.size() : 0);
  std::vector<RematPlan> all, held;
  if (offload) all = remat_levels(with_offloads(problem, order.sequence.largest), highest_allowance(), work(1), starts);
  if (!order.sequence.dearest.empty())
    held = remat_levels(with_offloads(problem, order.sequence.dearest), highest_allowance(), work(1), starts);
  order.levels.clear();
  for (llvm::ArrayRef<RematPlan> plans : {llvm::ArrayRef(all), llvm::ArrayRef(held), llvm::ArrayRef(remats_only)}) {
    if (plans.empty()) continue;
    std::vector<Candidate>& levels = order.levels.emplace_back();
    for (const RematPlan& plan : plans) levels.push_back(candidate(problem, plan));
  }
}

// Without copies and collectives nothing is faster than the plain order, so the search starts only once that has failed
// to fit.
void OffloadLevelSearch::start(FunctionSearch& function) {
  const OrderVariant& plain = function.orders.front();
  function.plain_tried = false;
  if (options_.recompute && !function.searched) {
    if (has_intervals(plain.sequence.problem) || plain.levels[0][0].plan.peak_bytes > allowance_)
      search(function);
    else
      function.plain_tried = true;
  }
  collect(function);
}

// Collects what may be tried within the allowance: of each list of levels, the lowest ones up to the allowance.
void OffloadLevelSearch::collect(FunctionSearch& function) {
  function.options.clear();
  const bool plain_only = options_.recompute && !function.searched;
  for (OrderVariant& order :
       llvm::MutableArrayRef<OrderVariant>(function.orders).take_front(plain_only ? 1 : function.orders.size()))
    for (std::vector<Candidate>& levels : order.levels)
      for (size_t c = levels.size(); c-- > 0;) {
        const RematPlan& plan = levels[c].plan;
        if (c + 1 < levels.size() && plan.peak_bytes > allowance_) break;
        if (host_bytes_of(order.sequence.problem, plan) > order.host_room) continue;
        const bool tried = function.plain_tried && !plain_only && &order == function.orders.data() &&
                           plan.remats.empty() && plan.reloads.empty();
        if (!tried) push(function, {&order, &levels[c], levels[c].min_us});
      }
}

// Of two with equal times, the one whose time is exact and no bound is tried first.
bool OffloadLevelSearch::is_later(const Trial& a, const Trial& b) {
  return a.us != b.us ? a.us > b.us : !a.overlap && b.overlap;
}

void OffloadLevelSearch::push(FunctionSearch& function, Trial option) {
  function.options.push_back(option);
  std::push_heap(function.options.begin(), function.options.end(), is_later);
}

// Adds one trial for each level of intervals within the allowance, and always the one with the shortest intervals.
void OffloadLevelSearch::push_overlaps(FunctionSearch& function, const Trial& option) {
  std::vector<Overlap>& overlaps = option.candidate->overlaps;
  if (overlaps.empty())
    overlaps =
        overlap_levels(apply_to_problem(option.order->sequence.problem, option.candidate->plan), highest_allowance());
  for (const Overlap& overlap : overlaps) {
    if (&overlap != &overlaps.front() && overlap.limit_bytes > allowance_) break;
    const bool at_bound = overlap.total_us <= option.candidate->min_us * (1 + rounding);
    push(function, {option.order, option.candidate, at_bound ? option.candidate->min_us : overlap.total_us, &overlap});
  }
}

// Takes the fastest trial. One whose time is only a bound goes back with its exact times.
bool OffloadLevelSearch::advance(FunctionSearch& function) {
  if (function.options.empty() && !function.searched && options_.recompute) {
    search(function);
    collect(function);
  }
  while (!function.options.empty()) {
    std::pop_heap(function.options.begin(), function.options.end(), is_later);
    const Trial option = function.options.back();
    function.options.pop_back();
    if (!option.overlap && (!option.candidate->plan.reloads.empty() || has_intervals(option.order->sequence.problem))) {
      push_overlaps(function, option);
      continue;
    }
    function.chosen = option;
    return true;
  }
  return false;
}

// Advances every function that is above its allowance or the host's; false if none had another plan to try.
bool OffloadLevelSearch::advance_all(const Plan& plan) {
  bool advanced = false;
  for (size_t f = 0; f < functions_.size(); ++f) {
    const bool above = plan.functions[f].transient_bytes > allowance_;
    const bool above_host = in_.host_budget_bytes > 0 && host_bytes_of(plan, f) > in_.host_budget_bytes;
    if (above || above_host) advanced |= advance(functions_[f]);
  }
  return advanced;
}

Result<Plan> OffloadLevelSearch::lower(int64_t budget_bytes) {
  draft_.emplace(Program{}, in_.draft.device, *in_.draft.catalog);
  for (FunctionSearch& function : functions_) {
    const Trial& option = function.chosen;
    const OrderVariant& order = *option.order;
    Graph& graph = draft_->program.functions.emplace_back(order.graph);
    FunctionDraft& planned = draft_->functions.emplace_back();
    planned.writers = order.writers;
    planned.added = rematerialise(graph, option.candidate->plan, order.sequence.values);
    planned.copies = issue_copies(graph, option.overlap ? llvm::ArrayRef<CopyInterval>(option.overlap->intervals)
                                                        : llvm::ArrayRef<CopyInterval>());
    llvm::append_range(planned.copies, transfers_in_flight(graph, planned.writers));
    if (Status s = verify(graph)) return s;
  }
  return lower_to_plan({*draft_, budget_bytes, in_.host_budget_bytes, in_.placement_seconds});
}

Result<Plan> OffloadLevelSearch::within(int64_t budget_bytes) {
  allowance_ = budget_bytes - in_.draft.device.reserve_bytes() - persistent_bytes_;
  for (FunctionSearch& function : functions_) {
    start(function);
    advance(function);
  }
  std::optional<Plan> least;
  for (;;) {
    Result<Plan> plan = lower(budget_bytes);
    if (!plan) return plan;
    for (size_t f = 0; f < functions_.size(); ++f)
      assert((meets_stages(draft_->program.functions[f]) || is_time_of(*plan, f, functions_[f].chosen.us)) &&
             "more budget may mean more time");
    if (is_within_budget(*plan)) return explained(std::move(*plan));
    if (!least || needs_less(*plan, *least)) least = explained(*plan);
    if (!advance_all(*plan)) return std::move(*least);
  }
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
                                    milliseconds(min_added_us(problem, allowance_))});
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
