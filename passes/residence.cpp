#include "passes/residence.h"

// The budget bounds the arena, which is what placement makes of the live bytes. So each function's plans are tried from
// the cheapest that could fit on, until one does once it is laid out. The plans come from a ladder that does not depend on the
// budget, and every one that could be the fastest is looked at, so that more budget does not mean more time. With copies this is
// tested, not proven: how wide they are depends on the budget, and is found greedily.

#include "ir/plan/timeline.h"
#include "ir/verify.h"
#include "passes/budget.h"
#include "passes/offload.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <thread>

namespace plimsoll {
namespace {

int64_t align_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

double compute_us(const RecomputeProblem& problem) {
  double us = 0;
  for (const RecomputeOp& op : problem.ops) us += op.channel == Channel::Compute ? op.cost_us : 0;
  return us;
}

// With the copies it has as wide as the greedy overlap makes them: an estimate of the least this order takes, whatever more is
// repeated or copied.
double with_all_room_us(const RecomputeProblem& problem) { return overlap_copies(problem, std::numeric_limits<int64_t>::max()).total_us; }

// What any op touches must be there while it runs.
int64_t largest_step(const RecomputeProblem& problem) {
  int64_t largest = 0;
  for (const RecomputeOp& op : problem.ops) {
    int64_t bytes = op.workspace_bytes;
    for (int32_t value : op.reads) bytes += problem.value_bytes[static_cast<size_t>(value)];
    for (int32_t value : op.writes) bytes += problem.value_bytes[static_cast<size_t>(value)];
    for (const TakeOver& pair : op.in_place) bytes -= problem.value_bytes[static_cast<size_t>(pair.written)];
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

Residence::Residence(const LoweringInput& input, const FitOptions& options, const llvm::StringSet<>& on_host, int64_t plain_persistent_bytes,
                     int64_t highest_budget, double search_seconds)
    : in_(input),
      options_(options),
      highest_budget_(highest_budget),
      search_seconds_(search_seconds),
      tracks_(input.program.functions.size()),
      persistent_bytes_(plain_persistent_bytes) {
  for (size_t f = 0; f < tracks_.size(); ++f) {
    add_order(tracks_[f], in_.program.functions[f], f, on_host);
    if (f >= options_.other_orders.size()) continue;
    Graph other = in_.program.functions[f];
    other.reorder(options_.other_orders[f]);
    add_order(tracks_[f], other, f, on_host);
  }
  measure();
}

void Residence::add_order(Track& track, const Graph& graph, size_t function, const llvm::StringSet<>& on_host) const {
  Order order{graph, in_.writers[function], {}, {}};
  move_states_to_host(order.graph, order.writers, on_host);
  if (options_.recompute) delay_free_updates(order.graph, order.writers);
  const bool offload = options_.offload && options_.recompute;
  // Where the host has little room, that for values may be what is missing.
  if (offload && in_.host_budget_bytes > 0) {
    order.sequence = recompute_problem(order.graph, order.writers, in_.device, in_.catalog);
    track.orders.push_back(order);
  }
  order.sequence = recompute_problem(order.graph, order.writers, in_.device, in_.catalog, offload);
  track.orders.push_back(std::move(order));
}

void Residence::measure() {
  llvm::StringSet<> counted;
  int64_t step_bytes = 0;
  for (size_t f = 0; f < tracks_.size(); ++f) {
    const Order& order = tracks_[f].orders.front();
    for (const State& state : order.graph.states) {
      const Value& value = order.graph.value(state.value);
      if (!counted.insert(value.name).second) continue;
      if (state.space == MemorySpace::Device) continue;
      const int64_t bytes = align_up(value.type.bytes(), in_.device.alignment_bytes);
      host_bytes_ += bytes;
      persistent_bytes_ -= bytes;
    }
    const double calls = f == 0 ? static_cast<double>(options_.training.accumulate) : 1;
    double least_us = std::numeric_limits<double>::infinity();
    for (const Order& either : tracks_[f].orders) least_us = std::min(least_us, with_all_room_us(either.sequence.problem));
    least_us_ += calls * least_us;
    step_bytes = std::max(step_bytes, largest_step(order.sequence.problem));
  }
  least_bytes_ = in_.device.reserve_bytes() + persistent_bytes_ + step_bytes;
}

bool Residence::has_copies(const Order& order, const RecomputePlan& plan) const {
  return !plan.fetches.empty() || llvm::any_of(order.sequence.problem.ops, [](const RecomputeOp& op) { return op.channel != Channel::Compute; });
}

// The heap gives the fastest. What is above the allowance may fit all the same once it is laid out; were it tried last, more budget
// could take longer.
bool Residence::is_later(const Option& a, const Option& b) { return a.us > b.us; }

void Residence::search(Track& track) {
  RecomputeOptions options;
  options.seconds = search_seconds_ / static_cast<double>(track.orders.size());
  const int64_t highest_allowance = highest_budget_ - in_.device.reserve_bytes() - persistent_bytes_;
  std::vector<std::thread> searches;  // that do not see each other
  for (Order& order : track.orders)
    searches.emplace_back([&order, &options, highest_allowance] { order.ladder = recompute_ladder(order.sequence.problem, highest_allowance, options); });
  for (std::thread& search : searches) search.join();
}

// Nothing is faster than the order as it is where no copies delay it, so the search waits until that has failed.
void Residence::start(Track& track) {
  const Order& plain = track.orders.front();
  track.options.clear();
  track.chosen.reset();
  track.all_collected = !options_.recompute;
  if (options_.recompute && (has_copies(plain, plain_) || measure_repeats(plain.sequence.problem, {}).peak_bytes > allowance_)) return collect(track);
  track.options.push_back({0, &plain_, compute_us(plain.sequence.problem)});
}

// All that may be tried within the present allowance.
void Residence::collect(Track& track) {
  track.all_collected = true;
  const double base = compute_us(track.orders.front().sequence.problem);
  if (track.orders.front().ladder.empty()) search(track);
  for (size_t i = 0; i < track.orders.size(); ++i)
    for (const RecomputePlan& plan : ladder_up_to(track.orders[i].ladder, allowance_)) track.options.push_back({i, &plan, base + plan.added_us});
  std::make_heap(track.options.begin(), track.options.end(), is_later);
}

void Residence::place_copies(const Order& order, Option& option, int64_t limit_bytes) const {
  Graph graph = order.graph;
  apply_plan(graph, *option.plan, order.sequence.values);
  option.overlap = overlap_copies(recompute_problem(graph, order.writers, in_.device, in_.catalog).problem, limit_bytes);
  option.us = option.overlap.total_us;
  option.limit_bytes = limit_bytes;
  option.placed = true;
}

// The fastest option left. One without its copies placed takes at least what it says, so it is placed and goes back.
std::optional<Residence::Option> Residence::next_option(Track& track) {
  while (!track.options.empty()) {
    std::pop_heap(track.options.begin(), track.options.end(), is_later);
    Option option = std::move(track.options.back());
    track.options.pop_back();
    const Order& order = track.orders[option.order];
    if (option.placed || !has_copies(order, *option.plan)) return option;
    place_copies(order, option, allowance_);
    track.options.push_back(std::move(option));
    std::push_heap(track.options.begin(), track.options.end(), is_later);
  }
  return std::nullopt;
}

// The next thing to try for a function whose arena part is above the allowance. The option that was goes back with copies that keep to
// so much less, then with the tightest, and takes its turn by what it takes then: another may be faster.
bool Residence::advance(Track& track, int64_t above_bytes) {
  if (track.chosen && track.chosen->placed && track.chosen->limit_bytes >= track.chosen->overlap.peak_bytes) {
    Option option = std::move(*track.chosen);
    place_copies(track.orders[option.order], option, option.tightened ? 0 : option.overlap.peak_bytes - std::max<int64_t>(above_bytes, 1));
    option.tightened = true;
    track.options.push_back(std::move(option));
    std::push_heap(track.options.begin(), track.options.end(), is_later);
  }
  if (track.options.empty() && !track.all_collected) collect(track);
  std::optional<Option> next = next_option(track);
  if (!next) return false;
  track.chosen = std::move(next);
  return true;
}

// Whether there was something else to try for a function that is above its allowance, or for one whose copies wait on a host without room.
bool Residence::advance_all(const Plan& plan) {
  bool advanced = false;
  for (size_t f = 0; f < tracks_.size(); ++f) {
    const int64_t above = plan.functions[f].transient_bytes - allowance_;
    const bool wants_less_host = !is_within_host_budget(plan) && !tracks_[f].chosen->plan->fetches.empty();
    if (wants_less_host)
      advanced |= advance(tracks_[f], tracks_[f].chosen->overlap.peak_bytes);  // no window but the tightest takes much less of it
    else if (above > 0)
      advanced |= advance(tracks_[f], above);
  }
  return advanced;
}

Result<Plan> Residence::lower(int64_t budget_bytes) {
  std::vector<std::vector<NodeId>> writers;
  std::vector<std::vector<CopyInFlight>> copies;
  program_.functions.clear();
  added_.clear();
  for (Track& track : tracks_) {
    const Option& option = *track.chosen;
    const Order& order = track.orders[option.order];
    Graph& graph = program_.functions.emplace_back(order.graph);
    writers.push_back(order.writers);
    added_.push_back(apply_plan(graph, *option.plan, order.sequence.values));
    copies.push_back(issue_copies(graph, option.overlap.windows));
    if (Status s = verify(graph)) return s;
  }
  return lower_to_plan({program_, writers, in_.device, in_.catalog, budget_bytes, in_.host_budget_bytes, added_, copies, in_.placement_seconds});
}

Result<Plan> Residence::within(int64_t budget_bytes) {
  allowance_ = budget_bytes - in_.device.reserve_bytes() - persistent_bytes_;
  for (Track& track : tracks_) {
    start(track);
    advance(track, 0);
  }
  std::optional<Plan> least;
  for (;;) {
    Result<Plan> plan = lower(budget_bytes);
    if (!plan) return plan;
    if (is_within_budget(*plan)) return explained(std::move(*plan));
    if (!least || needs_less(*plan, *least)) least = explained(*plan);
    if (!advance_all(*plan)) return std::move(*least);
  }
}

Plan Residence::explained(Plan plan) const {
  for (size_t f = 0; f < tracks_.size(); ++f) {
    const Option& chosen = *tracks_[f].chosen;
    const RecomputeProblem& problem = tracks_[f].orders[chosen.order].sequence.problem;
    const Graph& graph = program_.functions[f];
    if (!chosen.plan->repeats.empty() || !chosen.plan->fetches.empty()) {
      const double added = chosen.us - compute_us(problem);
      char share[32];
      std::snprintf(share, sizeof(share), "%.2f %%", 100 * added / std::max(compute_us(problem), 1e-9));
      plan.decisions.push_back({"recompute", graph.name, "repeat " + std::to_string(chosen.plan->repeats.size()) + " instructions",
                                "adds " + milliseconds(added) + ", " + share + " of the function; nothing of this order within the budget adds less than " +
                                    milliseconds(least_added_us(problem, allowance_))});
    }
    explain_copies(plan, f);
    for (NodeId id : added_[f])
      plan.decisions.push_back({graph.node(id).op->channel == Channel::Compute ? "recompute" : "offload", graph.value(graph.node(id).results[0]).name,
                                graph.node(id).op->channel == Channel::Compute ? "repeat" : graph.node(id).op->name.str(), graph.node(id).reason});
  }
  return plan;
}

void Residence::explain_copies(Plan& plan, size_t function) const {
  const Option& chosen = *tracks_[function].chosen;
  if (!chosen.placed) return;
  const Timeline time = predict_timeline(plan.functions[function]);
  plan.decisions.push_back({"offload", plan.functions[function].name, std::to_string(chosen.overlap.windows.size()) + " copies",
                            milliseconds(time.to_host_us) + " to the host and " + milliseconds(time.to_device_us) + " back beside " +
                                milliseconds(time.total_us - time.stalled_us) + " of computing, which waits " + milliseconds(time.stalled_us)});
}

}  // namespace plimsoll
