#include "passes/remat/memory_profile.h"

#include <algorithm>
#include <cassert>
#include <limits>

// A segment tree over stages whose pending additions stay where they were made; a leaf holds the few moments of
// its stage in a sorted list.

namespace plimsoll::fit {
namespace {

constexpr int64_t nothing = std::numeric_limits<int64_t>::min() / 4;

template <typename Events>
auto find(Events& events, int32_t op) {
  return std::lower_bound(events.begin(), events.end(), op, [](const auto& event, int32_t o) { return event.op < o; });
}

}  // namespace

MemoryProfile::MemoryProfile(int32_t stages) : events_(static_cast<size_t>(stages)) {
  while (size_ < events_.size()) size_ *= 2;
  max_.assign(2 * size_, nothing);
  add_.assign(2 * size_, 0);
  for (int32_t s = 0; s < stages; ++s) {
    events_[static_cast<size_t>(s)].push_back({s, 0});
    max_[leaf(s)] = 0;
  }
  for (size_t node = size_ - 1; node > 0; --node) max_[node] = std::max(max_[2 * node], max_[2 * node + 1]);
}

bool MemoryProfile::has(Moment at) const {
  const auto& events = events_[static_cast<size_t>(at.stage)];
  auto event = find(events, at.op);
  return event != events.end() && event->op == at.op;
}

Moment MemoryProfile::before(Moment at) const {
  const auto& events = events_[static_cast<size_t>(at.stage)];
  auto event = find(events, at.op);
  if (event != events.begin()) return {at.stage, std::prev(event)->op};
  assert(at.stage > 0 && "nothing is repeated before the first op");
  return {at.stage - 1, events_[static_cast<size_t>(at.stage) - 1].back().op};
}

int64_t MemoryProfile::added_above(size_t node) const {
  int64_t added = 0;
  for (; node > 0; node /= 2) added += add_[node];
  return added;
}

void MemoryProfile::refresh_leaf(int32_t stage) {
  int64_t top = nothing;
  for (const Event& event : events_[static_cast<size_t>(stage)]) top = std::max(top, event.live);
  max_[leaf(stage)] = top + add_[leaf(stage)];
  refresh_above(leaf(stage));
}

void MemoryProfile::refresh_above(size_t node) {
  for (node /= 2; node > 0; node /= 2) {
    ++steps_;
    max_[node] = std::max(max_[2 * node], max_[2 * node + 1]) + add_[node];
  }
}

void MemoryProfile::insert(Moment at, int64_t live) {
  auto& events = events_[static_cast<size_t>(at.stage)];
  events.insert(find(events, at.op), {at.op, live - added_above(leaf(at.stage))});
  refresh_leaf(at.stage);
}

void MemoryProfile::erase(Moment at) {
  auto& events = events_[static_cast<size_t>(at.stage)];
  events.erase(find(events, at.op));
  refresh_leaf(at.stage);
}

int64_t MemoryProfile::live(Moment at) const {
  const auto& events = events_[static_cast<size_t>(at.stage)];
  return find(events, at.op)->live + added_above(leaf(at.stage));
}

void MemoryProfile::add_within(int32_t stage, int32_t first_op, int32_t last_op, int64_t bytes) {
  bool any = false;
  for (Event& event : events_[static_cast<size_t>(stage)])
    if (event.op >= first_op && event.op <= last_op) {
      event.live += bytes;
      any = true;
    }
  if (any) refresh_leaf(stage);
}

void MemoryProfile::add(Moment first, Moment last, int64_t bytes) {
  if (first > last || bytes == 0) return;
  if (first.stage == last.stage) return add_within(first.stage, first.op, last.op, bytes);
  add_within(first.stage, first.op, std::numeric_limits<int32_t>::max(), bytes);
  add_within(last.stage, 0, last.op, bytes);
  size_t low = leaf(first.stage + 1), high = leaf(last.stage - 1);
  if (low > high) return;
  size_t left = low, right = high;
  for (size_t l = low, r = high + 1; l < r; l /= 2, r /= 2) {
    ++steps_;
    if (l % 2 == 1) {
      max_[l] += bytes;
      add_[l++] += bytes;
    }
    if (r % 2 == 1) {
      max_[--r] += bytes;
      add_[r] += bytes;
    }
  }
  refresh_above(left);
  refresh_above(right);
}

Moment MemoryProfile::peak_moment() const {
  size_t node = 1;
  while (node < size_) {
    int64_t below = max_[node] - add_[node];
    node = max_[2 * node] == below ? 2 * node : 2 * node + 1;
  }
  int32_t stage = static_cast<int32_t>(node - size_);
  const auto& events = events_[static_cast<size_t>(stage)];
  auto top = std::max_element(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.live < b.live; });
  return {stage, top->op};
}

int64_t MemoryProfile::excess(int64_t limit) const { return excess_below(1, limit); }

// `limit` is relative to what the ancestors of `node` add.
int64_t MemoryProfile::excess_below(size_t node, int64_t limit) const {
  if (max_[node] <= limit) return 0;
  ++steps_;
  limit -= add_[node];
  if (node < size_) return excess_below(2 * node, limit) + excess_below(2 * node + 1, limit);
  int64_t sum = 0;
  for (const Event& event : events_[node - size_]) sum += std::max<int64_t>(0, event.live - limit);
  return sum;
}

void MemoryProfile::each_above(int64_t limit, llvm::function_ref<bool(Moment, int64_t)> visit) const {
  visit_below(1, limit, 0, visit);
}

bool MemoryProfile::visit_below(size_t node, int64_t limit, int64_t added,
                                llvm::function_ref<bool(Moment, int64_t)> visit) const {
  if (max_[node] + added <= limit) return true;
  added += add_[node];
  if (node < size_) return visit_below(2 * node, limit, added, visit) && visit_below(2 * node + 1, limit, added, visit);
  int32_t stage = static_cast<int32_t>(node - size_);
  for (const Event& event : events_[static_cast<size_t>(stage)])
    if (event.live + added > limit && !visit({stage, event.op}, event.live + added)) return false;
  return true;
}

}  // namespace plimsoll::fit
