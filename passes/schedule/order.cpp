#include "passes/schedule/order.h"

#include "ir/support/parallel.h"
#include "ir/support/search_effort.h"
#include "passes/schedule/order_graph.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>
#include <numeric>

// Collects start orders, then lowers the peaks of the best few: whole buffers
// are moved out of the peak first, then windows around it are solved exactly.
// Every accepted change lowers the peak or makes it rarer, so the result is
// never above the given order. Problems that fit in one window are solved exactly.

namespace plimsoll {
namespace {

using namespace ordering;

constexpr int64_t window_states = 1 << 17;  // maximum number of sets that one window may try
constexpr size_t starts_improved = 3;

struct Start {
  std::vector<int32_t> order;
  int64_t peak;
};

std::vector<int32_t> given_order(const OrderGraph& graph) {
  std::vector<int32_t> order(graph.node_count());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Best first; the given order among them.
std::vector<Start> start_orders(const OrderGraph& graph) {
  std::vector<Start> starts;
  auto add = [&](std::vector<int32_t> order) {
    int64_t peak = Schedule(graph, order).peak();
    starts.push_back({std::move(order), peak});
  };
  add(given_order(graph));
  OrderGraph mirror = mirrored(graph);
  for (int32_t look_ahead : {0, 2, 8})
    for (Otherwise otherwise : {Otherwise::Earliest, Otherwise::Latest, Otherwise::SmallestGrowth}) {
      add(list_schedule(graph, {look_ahead, otherwise}));
      std::vector<int32_t> backwards = list_schedule(mirror, {look_ahead, otherwise});
      std::reverse(backwards.begin(), backwards.end());
      for (int32_t& n : backwards) n = graph.node_count() - 1 - n;
      add(std::move(backwards));
    }
  std::stable_sort(starts.begin(), starts.end(), [](const Start& a, const Start& b) { return a.peak < b.peak; });
  return starts;
}

// Rules often give the same order, which needs to be improved once.
void keep_different(std::vector<Start>& starts) {
  std::vector<Start> kept;
  for (Start& start : starts)
    if (llvm::none_of(kept, [&](const Start& other) { return other.order == start.order; }))
      kept.push_back(std::move(start));
  starts = std::move(kept);
}

// Windows that contain the peak, from the one it closes to the one it opens.
bool reorder_around_peak(Schedule& schedule) {
  int32_t peak = schedule.peak_position(), nodes = schedule.graph().node_count();
  for (int32_t size : {8, 14, largest_window}) {
    for (int32_t back = size - 1; back >= 0; back -= std::max(1, size / 5)) {
      int32_t begin = std::clamp(peak - back, 0, std::max(0, nodes - size));
      if (reorder_window(schedule, begin, std::min(begin + size, nodes), window_states)) return true;
    }
    if (size >= nodes) break;
  }
  return false;
}

void lower_peak(Schedule& schedule, int64_t step_limit) {
  while (schedule.steps() < step_limit && (move_out_of_peak(schedule) || reorder_around_peak(schedule))) {
  }
}

}  // namespace

OrderProblem permuted(const OrderProblem& problem, llvm::ArrayRef<int32_t> order) {
  std::vector<int32_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int32_t>(i);
  OrderProblem out;
  out.buffer_bytes = problem.buffer_bytes;
  out.pinned = problem.pinned;
  out.live_out = problem.live_out;
  for (int32_t node : order) {
    out.nodes.push_back(problem.nodes[node]);
    for (int32_t& before : out.nodes.back().after) before = place[before];
  }
  return out;
}

int64_t peak_bytes(const OrderProblem& problem, llvm::ArrayRef<int32_t> order) {
  const OrderGraph graph = touched_buffers(problem);
  return Schedule(graph, order.vec()).peak();
}

std::vector<int32_t> order_for_low_peak(const OrderProblem& problem, const OrderOptions& options) {
  OrderGraph graph = build_order_graph(problem);
  if (graph.node_count() <= largest_window) {
    Schedule schedule(graph, given_order(graph));
    if (graph.node_count() > 1) reorder_window(schedule, 0, graph.node_count(), std::numeric_limits<int64_t>::max());
    return schedule.order().vec();
  }
  std::vector<Start> starts = start_orders(graph);
  starts.resize(std::min(starts.size(), starts_improved));
  const int64_t steps = steps_for(options.seconds, order_steps_per_second) / static_cast<int64_t>(starts.size());
  keep_different(starts);
  std::vector<Start> improved(starts.size());
  parallel_for(starts.size(), [&](size_t i) {
    Schedule schedule(graph, starts[i].order);
    lower_peak(schedule, steps);
    improved[i] = {schedule.order().vec(), schedule.peak()};
  });
  Start& best = starts.front();
  for (Start& each : improved)
    if (each.peak < best.peak) best = std::move(each);
  return std::move(best.order);
}

// What runs early frees at least as much as it makes, so those behind it have no more alive than in the given order.
std::vector<int32_t> with_frees_early(const OrderProblem& problem, llvm::ArrayRef<int32_t> order) {
  const int64_t peak = peak_bytes(problem, order);
  const OrderGraph graph = build_order_graph(permuted(problem, order));
  std::vector<int32_t> early = list_schedule(graph, {1, Otherwise::Earliest, peak});
  for (int32_t& node : early) node = order[node];
  return peak_bytes(problem, early) <= peak ? early : order.vec();
}

}  // namespace plimsoll
