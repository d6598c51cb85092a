#include "passes/place/placement_problem.h"

#include "passes/place/placement_holes.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <random>

// No single order wins everywhere: by size is best on most training steps, by
// area and by start lose up to 40 % on some and win on others, so all are tried.
// The best is then repaired as in squeaky-wheel optimisation (Joslin & Clements
// 1999): a buffer that ended too high was placed too late.

namespace plimsoll::placement {
namespace {

constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();
constexpr int patience = 20;            // repairs in a row that did not help
constexpr size_t promotion_share = 20;  // a high buffer moves up by at most 1/20 of its place

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

void promote_high_buffers(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  HoleTree tree(piece.sections);
  std::mt19937_64 random(1);
  std::vector<int32_t> order(piece.buffers.size());
  std::vector<int64_t> turn(order.size());
  Packing trial = best;
  std::iota(order.begin(), order.end(), 0);
  for (int failed = 0; failed < patience && best.height > target && !effort.spent(); ++failed) {
    // First fit by rising offset puts nothing higher than it was, so only the promotions disturb.
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return trial.offsets[a] < trial.offsets[b]; });
    for (size_t i = 0; i < order.size(); ++i) {
      bool high = trial.offsets[order[i]] + piece.buffers[order[i]].bytes > target;
      int64_t place = static_cast<int64_t>(i);
      turn[order[i]] = high ? place - static_cast<int64_t>(random() % (i / promotion_share + 1)) : place;
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return turn[a] < turn[b]; });
    place_in_order(piece, order, Fit::First, no_limit, tree, effort, trial);
    if (trial.height >= best.height) continue;
    trial.method = best.method;
    best = trial;
    best.method += best.method.ends_with(", repaired") ? "" : ", repaired";
    failed = 0;
  }
}

}  // namespace plimsoll::placement
