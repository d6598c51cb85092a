#pragma once

// The bytes taken over time while buffers are placed one after another.

#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace plimsoll::placement {

enum class Fit { First, Tightest };

// Which bytes are taken over which sections, asked as "where does a buffer of this size and lifetime fit".
//
// A segment tree over sections. A buffer is stored at the O(log n) nodes that
// make up its lifetime and, merged with what is there, in the union of every
// node above them. The bytes taken during a lifetime are then the unions of its
// own nodes and the buffers stored at the nodes above. Packed buffers touch, so
// the merged lists stay short, and the overlap graph (180 million pairs at
// 62,000 buffers) never exists.
class HoleTree {
 public:
  explicit HoleTree(int32_t sections) { restart(sections); }

  void clear() {
    for (Node& node : nodes_) {
      node.whole.clear();
      node.within.clear();
    }
  }

  // Clears it for so many sections and keeps the memory.
  void restart(int32_t sections) {
    while (leaves_ < sections) leaves_ *= 2;
    clear();
    nodes_.resize(2 * static_cast<size_t>(leaves_));
  }

  // Marks bytes [low, high) as taken in sections [first, last]. Taken bytes may be taken again.
  void occupy(int32_t first, int32_t last, int64_t low, int64_t high) {
    if (low < high) occupy_node(1, 0, leaves_, first, last, {low, high});
  }

  // The offset of the first or the tightest hole of `bytes` that is free in all of [first, last];
  // -1 when none ends at or below `limit`.
  int64_t find(int32_t first, int32_t last, int64_t bytes, Fit fit, int64_t limit) {
    cursors_.clear();
    collect(1, 0, leaves_, first, last);
    steps_ += 16;
    int64_t hole = next_hole(0, bytes, limit);
    if (fit == Fit::First) return hole;
    int64_t best = hole;
    int64_t best_size = std::numeric_limits<int64_t>::max();
    while (hole >= 0) {
      int64_t end = hole_end();
      if (end - hole < best_size) {
        best = hole;
        best_size = end - hole;
      }
      if (end == std::numeric_limits<int64_t>::max() || best_size == bytes) break;
      hole = next_hole(end, bytes, limit);
    }
    return best;
  }

  // Elementary steps since construction.
  int64_t steps() const { return steps_; }

 private:
  struct Span {
    int64_t low, high;
  };
  using Spans = std::vector<Span>;  // sorted, disjoint, never touching
  struct Node {
    Spans whole;   // taken in every section of the node by buffers that end at this node
    Spans within;  // taken in at least one section of the node, `whole` included
  };
  struct Cursor {
    const Span* at;
    const Span* end;
  };

  void add(Spans& spans, Span span) {
    // Behind all others, or into the last, is where most go.
    if (spans.empty() || spans.back().low <= span.low) {
      steps_ += 8;
      if (spans.empty() || spans.back().high < span.low)
        spans.push_back(span);
      else
        spans.back().high = std::max(spans.back().high, span.high);
      return;
    }
    // The spans from `begin` to `end` touch or overlap the new one and become one with it.
    auto begin =
        std::lower_bound(spans.begin(), spans.end(), span.low, [](const Span& s, int64_t low) { return s.high < low; });
    auto end = begin;
    for (; end != spans.end() && end->low <= span.high; ++end) {
      span.low = std::min(span.low, end->low);
      span.high = std::max(span.high, end->high);
    }
    steps_ += 8 + (spans.end() - end) / 8;
    if (begin == end) {
      spans.insert(begin, span);
    } else {
      *begin = span;
      spans.erase(begin + 1, end);
    }
  }

  void occupy_node(int32_t node, int32_t begin, int32_t width, int32_t first, int32_t last, Span span) {
    add(nodes_[node].within, span);
    if (first <= begin && begin + width - 1 <= last) {
      add(nodes_[node].whole, span);
      return;
    }
    int32_t half = width / 2;
    if (first < begin + half) occupy_node(2 * node, begin, half, first, last, span);
    if (last >= begin + half) occupy_node(2 * node + 1, begin + half, half, first, last, span);
  }

  void collect(int32_t node, int32_t begin, int32_t width, int32_t first, int32_t last) {
    bool inside = first <= begin && begin + width - 1 <= last;
    const Spans& spans = inside ? nodes_[node].within : nodes_[node].whole;
    if (!spans.empty()) cursors_.push_back({spans.data(), spans.data() + spans.size()});
    if (inside || nodes_[node].within.empty()) return;
    int32_t half = width / 2;
    if (first < begin + half) collect(2 * node, begin, half, first, last);
    if (last >= begin + half) collect(2 * node + 1, begin + half, half, first, last);
  }

  // The lowest hole of `bytes` at or above `from`; cursors only move up.
  int64_t next_hole(int64_t from, int64_t bytes, int64_t limit) {
    size_t quiet = 0;  // lists in a row that did not object to `from`
    for (size_t i = 0; quiet < cursors_.size(); i = i + 1 == cursors_.size() ? 0 : i + 1) {
      Cursor& c = cursors_[i];
      const Span* start = c.at;
      while (c.at != c.end && c.at->high <= from) ++c.at;
      steps_ += 4 + (c.at - start);  // a list is a cache miss
      ++quiet;
      if (c.at == c.end || c.at->low >= from + bytes) continue;
      from = c.at->high;
      quiet = 0;
      if (from > limit - bytes) return -1;
    }
    return from <= limit - bytes ? from : -1;
  }

  int64_t hole_end() const {
    int64_t end = std::numeric_limits<int64_t>::max();
    for (const Cursor& c : cursors_)
      if (c.at != c.end) end = std::min(end, c.at->low);
    return end;
  }

  int32_t leaves_ = 1;
  std::vector<Node> nodes_;
  llvm::SmallVector<Cursor, 64> cursors_;
  int64_t steps_ = 0;
};

}  // namespace plimsoll::placement
