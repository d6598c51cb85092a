#include "passes/schedule/order_improve.h"

#include <algorithm>

// A buffer that is alive at the peak but not touched there can leave it in two
// ways: its last touchers run earlier, or all of its touchers run later. Either
// takes along the nodes between that they need or that need them.

namespace plimsoll::ordering {
namespace {

constexpr size_t largest_move = 24;      // nodes moved at once
constexpr size_t buffers_tried = 64;     // largest first
constexpr int32_t longest_reach = 4000;  // positions between the peak and what moves

// Grows `moved` by what stands in (low, high) and must go along; `next` lists a node's neighbours on
// the side of the peak. False when the peak's own node, or too much, would have to move.
bool close_over(const Schedule& schedule, const Rows& next, int32_t low, int32_t high, int32_t peak,
                llvm::SmallVectorImpl<int32_t>& moved) {
  for (size_t i = 0; i < moved.size(); ++i) {
    if (moved.size() > largest_move) return false;
    for (int32_t n : next[moved[i]]) {
      int32_t position = schedule.position(n);
      if (position == peak) return false;
      if (position <= low || position >= high) continue;
      if (std::find(moved.begin(), moved.end(), n) == moved.end()) moved.push_back(n);
    }
  }
  return true;
}

void sort_by_position(const Schedule& schedule, llvm::SmallVectorImpl<int32_t>& nodes) {
  std::sort(nodes.begin(), nodes.end(),
            [&](int32_t a, int32_t b) { return schedule.position(a) < schedule.position(b); });
}

// Runs `moved` (positions after the peak) right before the peak's node.
bool run_before(Schedule& schedule, int32_t peak, llvm::SmallVectorImpl<int32_t>& moved) {
  sort_by_position(schedule, moved);
  int32_t end = schedule.position(moved.back()) + 1;
  if (end - peak > longest_reach) return false;
  std::vector<int32_t> nodes(moved.begin(), moved.end());
  size_t taken = 0;
  for (int32_t p = peak; p < end; ++p) {
    if (taken < moved.size() && schedule.order()[p] == moved[taken])
      ++taken;
    else
      nodes.push_back(schedule.order()[p]);
  }
  return schedule.replace_if_lower(peak, nodes);
}

// Runs `moved` (positions before the peak) right after the peak's node.
bool run_after(Schedule& schedule, int32_t peak, llvm::SmallVectorImpl<int32_t>& moved) {
  sort_by_position(schedule, moved);
  int32_t begin = schedule.position(moved.front());
  if (peak - begin > longest_reach) return false;
  std::vector<int32_t> nodes;
  size_t taken = 0;
  for (int32_t p = begin; p <= peak; ++p) {
    if (taken < moved.size() && schedule.order()[p] == moved[taken])
      ++taken;
    else
      nodes.push_back(schedule.order()[p]);
  }
  nodes.insert(nodes.end(), moved.begin(), moved.end());
  return schedule.replace_if_lower(begin, nodes);
}

bool leave_early(Schedule& schedule, int32_t peak, int32_t buffer) {
  const OrderGraph& graph = schedule.graph();
  if (graph.to_end[buffer]) return false;
  llvm::SmallVector<int32_t, largest_move + 8> moved;
  for (int32_t t : graph.touchers[buffer]) {
    if (schedule.position(t) > peak) moved.push_back(t);
    if (moved.size() > largest_move) return false;
  }
  int32_t end = schedule.graph().node_count();
  return close_over(schedule, graph.preds, peak, end, peak, moved) && run_before(schedule, peak, moved);
}

bool arrive_late(Schedule& schedule, int32_t peak, int32_t buffer) {
  const OrderGraph& graph = schedule.graph();
  if (graph.from_start[buffer]) return false;
  llvm::SmallVector<int32_t, largest_move + 8> moved;
  for (int32_t t : graph.touchers[buffer]) {
    if (schedule.position(t) < peak) moved.push_back(t);
    if (moved.size() > largest_move) return false;
  }
  return close_over(schedule, graph.succs, -1, peak, peak, moved) && run_after(schedule, peak, moved);
}

// The largest buffers that are alive at the position and not touched there.
std::vector<int32_t> bystanders(const Schedule& schedule, int32_t position) {
  const OrderGraph& graph = schedule.graph();
  std::vector<int32_t> result;
  llvm::ArrayRef<int32_t> here = graph.touched[schedule.order()[position]];
  for (int32_t b = 0; b < graph.buffer_count(); ++b)
    if (!graph.touchers[b].empty() && schedule.alive_before(b, position) && schedule.alive_after(b, position) &&
        std::find(here.begin(), here.end(), b) == here.end())
      result.push_back(b);
  auto larger = [&](int32_t a, int32_t b) {
    return graph.bytes[a] != graph.bytes[b] ? graph.bytes[a] > graph.bytes[b] : a < b;
  };
  size_t kept = std::min(buffers_tried, result.size());
  std::partial_sort(result.begin(), result.begin() + static_cast<ptrdiff_t>(kept), result.end(), larger);
  result.resize(kept);
  return result;
}

}  // namespace

bool move_out_of_peak(Schedule& schedule) {
  int32_t peak = schedule.peak_position();
  schedule.spend(schedule.graph().buffer_count());
  for (int32_t b : bystanders(schedule, peak))
    if (leave_early(schedule, peak, b) || arrive_late(schedule, peak, b)) return true;
  return false;
}

}  // namespace plimsoll::ordering
