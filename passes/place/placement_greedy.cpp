#include "passes/place/placement_problem.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

// No single order wins everywhere: by size is best on most training steps, by
// area and by start lose up to 40 % on some and win on others, so all are tried.

namespace plimsoll::placement {
namespace {

constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();

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
  explicit HoleTree(int32_t sections) {
    while (leaves_ < sections) leaves_ *= 2;
    nodes_.resize(2 * static_cast<size_t>(leaves_));
  }

  void clear() {
    for (Node& node : nodes_) {
      node.whole.clear();
      node.within.clear();
    }
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

// Places in the given order; false when a buffer would end above `limit`.
bool place_in_order(const Piece& piece, llvm::ArrayRef<int32_t> order, Fit fit, int64_t limit, HoleTree& tree,
                    Effort& effort, Packing& out) {
  int64_t steps_before = tree.steps();
  tree.clear();
  out.offsets.assign(piece.buffers.size(), 0);
  out.height = 0;
  bool fits = true;
  for (int32_t i : order) {
    const Buffer& b = piece.buffers[i];
    int64_t offset = tree.find(b.first, b.last, b.bytes, fit, limit);
    if (offset < 0) {
      fits = false;
      break;
    }
    tree.occupy(b.first, b.last, offset, offset + b.bytes);
    out.offsets[i] = offset;
    out.height = std::max(out.height, offset + b.bytes);
  }
  effort.spend(tree.steps() - steps_before);
  return fits;
}

using Key = std::array<int64_t, 2>;  // ascending

std::vector<int32_t> sorted_by(const Piece& piece, Key (*key)(const Buffer&)) {
  std::vector<int32_t> order(piece.buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return key(piece.buffers[a]) < key(piece.buffers[b]); });
  return order;
}

struct StaticOrder {
  const char* name;
  Key (*key)(const Buffer&);
};

constexpr StaticOrder static_orders[] = {
    {"size",
     [](const Buffer& b) {
       return Key{-b.bytes, b.first};
     }},
    {"size, life",
     [](const Buffer& b) {
       return Key{-b.bytes, b.first - b.last};
     }},
    {"life, size",
     [](const Buffer& b) {
       return Key{b.first - b.last, -b.bytes};
     }},
    {"area",
     [](const Buffer& b) {
       return Key{-b.bytes * (b.last - b.first + 1), -b.bytes};
     }},
    {"start",
     [](const Buffer& b) {
       return Key{b.first, -b.bytes};
     }},
    {"power of two, start",
     [](const Buffer& b) {
       return Key{-static_cast<int64_t>(llvm::Log2_64(static_cast<uint64_t>(b.bytes))), b.first};
     }},
    {"power of two, life",
     [](const Buffer& b) {
       return Key{-static_cast<int64_t>(llvm::Log2_64(static_cast<uint64_t>(b.bytes))), b.first - b.last};
     }},
};

}  // namespace

void try_static_orders(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  HoleTree tree(piece.sections);
  Packing trial;
  for (const StaticOrder& o : static_orders) {
    std::vector<int32_t> order = sorted_by(piece, o.key);
    for (Fit fit : {Fit::First, Fit::Tightest}) {
      bool have_one = best.height != no_limit;
      if (have_one && (best.height <= target || effort.spent())) return;
      int64_t limit = have_one ? best.height - 1 : no_limit;
      if (!place_in_order(piece, order, fit, limit, tree, effort, trial)) continue;
      trial.method = std::string("greedy by ") + o.name + (fit == Fit::First ? ", first fit" : ", tightest fit");
      std::swap(best, trial);
    }
  }
}

bool fill_holes(const Piece& piece, llvm::ArrayRef<int64_t> offsets, int64_t limit, Effort& effort, Packing& out) {
  HoleTree tree(piece.sections);
  out.offsets = offsets.vec();
  out.height = 0;
  std::vector<int32_t> open;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const Buffer& b = piece.buffers[i];
    if (offsets[i] < 0) {
      open.push_back(static_cast<int32_t>(i));
      continue;
    }
    tree.occupy(b.first, b.last, offsets[i], offsets[i] + b.bytes);
    out.height = std::max(out.height, offsets[i] + b.bytes);
  }
  std::stable_sort(open.begin(), open.end(),
                   [&](int32_t a, int32_t b) { return piece.buffers[a].bytes > piece.buffers[b].bytes; });
  for (int32_t i : open) {
    const Buffer& b = piece.buffers[i];
    const int64_t offset = tree.find(b.first, b.last, b.bytes, Fit::First, limit);
    if (offset < 0) return false;
    tree.occupy(b.first, b.last, offset, offset + b.bytes);
    out.offsets[i] = offset;
    out.height = std::max(out.height, offset + b.bytes);
  }
  effort.spend(tree.steps());
  return true;
}

}  // namespace plimsoll::placement
