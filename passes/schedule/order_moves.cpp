#include "passes/schedule/order_graph.h"

#include "llvm/ADT/STLExtras.h"

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
bool close_over(const Schedule& schedule, const Lists& next, int32_t low, int32_t high, int32_t peak,
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

// Runs `moved` right before the peak's node where they stand after it, and right after it where they stand before it.
bool run_across(Schedule& schedule, int32_t peak, llvm::SmallVectorImpl<int32_t>& moved) {
  llvm::sort(moved, [&](int32_t a, int32_t b) { return schedule.position(a) < schedule.position(b); });
  const bool is_later = schedule.position(moved.front()) > peak;
  const int32_t begin = is_later ? peak : schedule.position(moved.front());
  const int32_t end = is_later ? schedule.position(moved.back()) + 1 : peak + 1;
  if (end - begin > longest_reach) return false;
  std::vector<int32_t> nodes;
  const int32_t* next = moved.begin();
  for (int32_t node : schedule.order().slice(begin, end - begin))
    if (next != moved.end() && *next == node)
      ++next;
    else
      nodes.push_back(node);
  nodes.insert(is_later ? nodes.begin() : nodes.end(), moved.begin(), moved.end());
  return schedule.replace_if_lower(begin, nodes);
}

// Moves the touchers of the buffer that stand on one side of the peak to the other side.
bool leave_peak(Schedule& schedule, int32_t peak, int32_t buffer, bool early) {
  const OrderGraph& graph = schedule.graph();
  if (early ? graph.to_end[buffer] : graph.from_start[buffer]) return false;
  llvm::SmallVector<int32_t, largest_move + 8> moved;
  for (int32_t t : graph.touchers[buffer]) {
    if (early ? schedule.position(t) > peak : schedule.position(t) < peak) moved.push_back(t);
    if (moved.size() > largest_move) return false;
  }
  const bool closed = early ? close_over(schedule, graph.preds, peak, graph.node_count(), peak, moved)
                            : close_over(schedule, graph.succs, -1, peak, peak, moved);
  return closed && run_across(schedule, peak, moved);
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
    if (leave_peak(schedule, peak, b, true) || leave_peak(schedule, peak, b, false)) return true;
  return false;
}

}  // namespace plimsoll::ordering
