#include "passes/place/hole_tree.h"
#include "passes/place/placement_problem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <numeric>

// No single order wins everywhere: by size is best on most training steps, by
// area and by start lose up to 40 % on some and win on others, so all are tried.

namespace plimsoll::placement {
namespace {

constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();

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

// What is alive at the peak comes first in these, by the key, and so lies there without a hole; the rest follows by
// size.
constexpr StaticOrder peak_orders[] = {
    {"peak, life",
     [](const Buffer& b) {
       return Key{b.first - b.last, -b.bytes};
     }},
    {"peak, start",
     [](const Buffer& b) {
       return Key{b.first, -b.bytes};
     }},
    {"peak, end",
     [](const Buffer& b) {
       return Key{-b.last, -b.bytes};
     }},
};

// The first section with the largest sum of live bytes.
int32_t peak_section(const Piece& piece) {
  std::vector<int64_t> change(static_cast<size_t>(piece.sections) + 1);
  for (const Buffer& b : piece.buffers) change[b.first] += b.bytes, change[b.last + 1] -= b.bytes;
  std::partial_sum(change.begin(), change.end(), change.begin());
  return static_cast<int32_t>(std::max_element(change.begin(), change.end()) - change.begin());
}

class PeakOrders {
 public:
  explicit PeakOrders(const Piece& piece)
      : piece_(piece), peak_(peak_section(piece)), by_size_(sorted_by(piece, static_orders[0].key)) {}

  std::vector<int32_t> by(const StaticOrder& o) const {
    std::vector<int32_t> order;
    llvm::copy_if(sorted_by(piece_, o.key), std::back_inserter(order), [&](int32_t i) { return meets_peak(i); });
    llvm::copy_if(by_size_, std::back_inserter(order), [&](int32_t i) { return !meets_peak(i); });
    return order;
  }

 private:
  bool meets_peak(int32_t i) const { return piece_.buffers[i].first <= peak_ && peak_ <= piece_.buffers[i].last; }

  const Piece& piece_;
  int32_t peak_;
  std::vector<int32_t> by_size_;
};

// Keeps the lowest packing of the order in `best`, until that is as low as `target`.
void try_order(const Piece& piece, llvm::ArrayRef<int32_t> order, const char* name, int64_t target, HoleTree& tree,
               Effort& effort, Packing& best) {
  Packing trial;
  for (Fit fit : {Fit::First, Fit::Tightest}) {
    bool have_one = best.height != no_limit;
    if (have_one && (best.height <= target || effort.spent())) return;
    int64_t limit = have_one ? best.height - 1 : no_limit;
    if (!place_in_order(piece, order, fit, limit, tree, effort, trial)) continue;
    trial.method = std::string("greedy by ") + name + (fit == Fit::First ? ", first fit" : ", tightest fit");
    std::swap(best, trial);
  }
}

}  // namespace

void try_static_orders(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  HoleTree tree(piece.sections);
  for (const StaticOrder& o : static_orders)
    try_order(piece, sorted_by(piece, o.key), o.name, target, tree, effort, best);
}

void try_peak_orders(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  if (best.height <= target) return;
  HoleTree tree(piece.sections);
  const PeakOrders orders(piece);
  for (const StaticOrder& o : peak_orders) try_order(piece, orders.by(o), o.name, target, tree, effort, best);
}

void visit_orders(const Piece& piece, Effort& effort, llvm::function_ref<void(Packing)> tell) {
  HoleTree tree(piece.sections);
  const auto visit = [&](llvm::ArrayRef<int32_t> order) {
    for (Fit fit : {Fit::First, Fit::Tightest}) {
      if (effort.spent()) return;
      Packing packing;
      place_in_order(piece, order, fit, no_limit, tree, effort, packing);
      tell(std::move(packing));
    }
  };
  const PeakOrders orders(piece);
  for (const StaticOrder& o : peak_orders) visit(orders.by(o));
  for (const StaticOrder& o : static_orders) visit(sorted_by(piece, o.key));
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
