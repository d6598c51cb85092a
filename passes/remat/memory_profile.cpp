#include "passes/remat/memory_profile.h"

#include <algorithm>
#include <cassert>
#include <limits>

// A segment tree over positions. Additions stay at the nodes where they were made; a leaf holds the few points of its
// position in a sorted list. Most changes come several at once, and many are taken back before anybody asks for a
// maximum, so what nodes know of those below them is brought up to date when it is asked for.

namespace plimsoll::remat {
namespace {

constexpr int64_t nothing =
    std::numeric_limits<int64_t>::min() / 4;  // the maximum of no point; its minimum is -nothing

template <typename Events>
auto find(Events& events, int32_t op) {
  return std::lower_bound(events.begin(), events.end(), op, [](const auto& event, int32_t o) { return event.op < o; });
}

}  // namespace

MemoryProfile::MemoryProfile(int32_t positions) : events_(static_cast<size_t>(positions)) {
  for (; size_ < events_.size(); size_ *= 2) ++depth_;
  nodes_.assign(2 * size_, {nothing, -nothing, 0, 0, 0});
  is_stale_.assign(2 * size_, false);
  for (int32_t s = 0; s < positions; ++s) {
    events_[s].push_back({s, 0});
    nodes_[leaf(s)] = {0, 0, 0, 0, 1};
  }
  for (size_t node = size_ - 1; node > 0; --node) refresh(node);
}

bool MemoryProfile::has(ProgramPoint at) const {
  const auto& events = events_[at.position()];
  auto event = find(events, at.op());
  return event != events.end() && event->op == at.op();
}

ProgramPoint MemoryProfile::before(ProgramPoint at) const {
  const auto& events = events_[at.position()];
  auto event = find(events, at.op());
  if (event != events.begin()) return {at.position(), std::prev(event)->op};
  assert(at.position() > 0 && "no remat stands before the first op");
  return {at.position() - 1, events_[at.position() - 1].back().op};
}

int64_t MemoryProfile::added_above(size_t node) const {
  int64_t added = 0;
  for (; node > 0; node /= 2) added += nodes_[node].add;
  return added;
}

// All but the nodes above it.
void MemoryProfile::refresh_leaf(int32_t position) const {
  Node& node = nodes_[leaf(position)];
  const int64_t add = node.add;
  node = {nothing, -nothing, 0, 0, static_cast<int64_t>(events_[position].size())};
  for (const Event& event : events_[position]) {
    node.max = std::max(node.max, event.live);
    node.min = std::min(node.min, event.live);
    node.sum += event.live;
  }
  node.raise(add);
}

void MemoryProfile::refresh(size_t node) const {
  const Node &left = nodes_[2 * node], &right = nodes_[2 * node + 1];
  const int64_t points = left.points + right.points, add = nodes_[node].add;
  nodes_[node] = {std::max(left.max, right.max) + add, std::min(left.min, right.min) + add,
                  left.sum + right.sum + points * add, add, points};
}

// Nodes above a stale one are always stale, so the way up ends at the first that is.
void MemoryProfile::mark_stale(size_t node) {
  for (; node > 0 && !is_stale_[node]; node /= 2) is_stale_[node] = true;
}

void MemoryProfile::settle(size_t node) const {
  if (!is_stale_[node]) return;
  is_stale_[node] = false;
  if (node >= size_) return refresh_leaf(static_cast<int32_t>(node - size_));
  settle(2 * node);
  settle(2 * node + 1);
  refresh(node);
}

void MemoryProfile::insert(ProgramPoint at, int64_t live) {
  auto& events = events_[at.position()];
  events.insert(find(events, at.op()), {at.op(), live - added_above(leaf(at.position()))});
  mark_stale(leaf(at.position()));
  count_steps(depth_);
}

void MemoryProfile::erase(ProgramPoint at) {
  auto& events = events_[at.position()];
  events.erase(find(events, at.op()));
  mark_stale(leaf(at.position()));
  count_steps(depth_);
}

int64_t MemoryProfile::live(ProgramPoint at) const {
  const auto& events = events_[at.position()];
  return find(events, at.op())->live + added_above(leaf(at.position()));
}

// Returns whether there is such a point.
bool MemoryProfile::add_within(int32_t position, int32_t first_op, int32_t last_op, int64_t bytes) {
  auto& events = events_[position];
  const auto first = find(events, first_op);
  auto event = first;
  for (; event != events.end() && event->op <= last_op; ++event) event->live += bytes;
  if (event == first) return false;
  mark_stale(leaf(position));
  return true;
}

void MemoryProfile::add(ProgramPoint first, ProgramPoint last, int64_t bytes) {
  if (first > last || bytes == 0) return;
  if (first.position() == last.position()) {
    if (add_within(first.position(), first.op(), last.op(), bytes)) count_steps(depth_);
    return;
  }
  const bool at_first = add_within(first.position(), first.op(), std::numeric_limits<int32_t>::max(), bytes);
  const bool at_last = add_within(last.position(), 0, last.op(), bytes);
  count_steps((at_first + at_last) * depth_ + steps_between(leaf(first.position()), leaf(last.position())));
  // Everything between the two leaves is below nodes that stand beside the paths from these to where they meet.
  size_t left = leaf(first.position()), right = leaf(last.position());
  for (; left / 2 != right / 2; left /= 2, right /= 2) {
    if (left % 2 == 0) nodes_[left + 1].raise(bytes);
    if (right % 2 == 1) nodes_[right - 1].raise(bytes);
  }
  mark_stale(leaf(first.position()) / 2);
  mark_stale(leaf(last.position()) / 2);
}

// A stretch between two leaves counts as if its nodes were found first, and the way to the root went on from its ends.
int64_t MemoryProfile::steps_between(size_t before, size_t after) const {
  if (before + 1 == after) return 0;
  int64_t steps = depth_;
  for (++before; before < after; before = (before + 1) / 2, after /= 2) ++steps;
  return steps;
}

ProgramPoint MemoryProfile::peak_point() const {
  settle(1);
  size_t node = 1;
  while (node < size_) {
    const int64_t below = nodes_[node].max - nodes_[node].add;
    node = nodes_[2 * node].max == below ? 2 * node : 2 * node + 1;
  }
  int32_t position = static_cast<int32_t>(node - size_);
  const auto& events = events_[position];
  auto top =
      std::max_element(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.live < b.live; });
  return {position, top->op};
}

int64_t MemoryProfile::peak() const {
  settle(1);
  return nodes_[1].max;
}

int64_t MemoryProfile::excess(int64_t limit) const {
  settle(1);
  return excess_below(1, limit);
}

// `limit` is relative to what the ancestors of `node` add. Stretches of which nothing is above it are not visited.
int64_t MemoryProfile::excess_below(size_t node, int64_t limit) const {
  const Node& all = nodes_[node];
  if (all.max <= limit) return 0;
  ++steps_;
  if (all.min >= limit) return all.sum - all.points * limit;
  limit -= all.add;
  int64_t sum = 0;
  if (node < size_) {
    for (const size_t half : {2 * node, 2 * node + 1})
      if (nodes_[half].max > limit) sum += excess_below(half, limit);
    return sum;
  }
  for (const Event& event : events_[node - size_]) sum += std::max<int64_t>(0, event.live - limit);
  return sum;
}

void MemoryProfile::each_above(int64_t limit, llvm::function_ref<bool(ProgramPoint, int64_t)> take) const {
  settle(1);
  each_below(1, limit, 0, take);
}

bool MemoryProfile::each_below(size_t node, int64_t limit, int64_t added,
                               llvm::function_ref<bool(ProgramPoint, int64_t)> take) const {
  if (nodes_[node].max + added <= limit) return true;
  added += nodes_[node].add;
  if (node < size_) return each_below(2 * node, limit, added, take) && each_below(2 * node + 1, limit, added, take);
  int32_t position = static_cast<int32_t>(node - size_);
  for (const Event& event : events_[position])
    if (event.live + added > limit && !take({position, event.op}, event.live + added)) return false;
  return true;
}

}  // namespace plimsoll::remat
