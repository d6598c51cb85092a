#include "ir/support/parallel.h"
#include "passes/place/flexible_placement.h"
#include "passes/place/placement_problem.h"

#include "llvm/ADT/STLExtras.h"

#include <array>
#include <atomic>
#include <numeric>
#include <optional>
#include <utility>

// Greedy orders leave different buffers above a lower capacity, and in some of their packings these find room as soon
// as a few others move: an ejection search that starts there gets to the capacity at once, or hardly ever. So the
// packing of each order gets a little of such a search. Packings of blocks take less time and are as good to start
// from.

namespace plimsoll::placement {
namespace {

constexpr int attempts = 3;  // capacities, each with as much of the effort
constexpr int presses = 8;   // the same, where one starts from the packing that there is

// Of 121 searches from a packing that found a layout, in plain plans of 51 models, 98 took up to 3 million steps, and
// of 28 from packings of blocks 23 up to a million.
constexpr int64_t steps_of_best = 20'000'000, steps_of_order = 1'000'000;
constexpr int64_t block_shares[] = {1000, 300};  // of the bound, no buffer of a block is larger than one
constexpr int64_t steps_of_orders = 40'000'000;  // of the orders themselves
constexpr int64_t near_share = 500;              // no start from scratch begins nearer the bound than one of these
constexpr int starts_from_scratch = 6, starts_at_once = 2;
constexpr int64_t steps_of_start = 60'000'000, rounds_of_start = 3;  // at least what places every buffer some times

enum class Start : uint8_t { FromScratch, FromBest };

std::vector<FlexibleInterval> intervals_of(const Piece& piece) {
  std::vector<FlexibleInterval> intervals;
  for (const Buffer& b : piece.buffers) {
    const Life life{b.first, b.last};
    intervals.push_back({b.bytes, life, life, life});
  }
  return intervals;
}

// What the bytes of all buffers are multiples of.
int64_t unit_of(const Piece& piece) {
  int64_t unit = 0;
  for (const Buffer& b : piece.buffers) unit = std::gcd(unit, b.bytes);
  return unit;
}

// Half of the way down from the best height to one that was missed.
int64_t halfway(int64_t missed, const Packing& best, int64_t unit) {
  return missed + std::max(unit, (best.height - missed) / 2 / unit * unit);
}

std::vector<int64_t> offsets_of(const FlexiblePlacer& placer, size_t count) {
  std::vector<int64_t> offsets;
  for (size_t i = 0; i < count; ++i) offsets.push_back(placer.offset(i));
  return offsets;
}

Packing packing_of(const Piece& piece, std::vector<int64_t> offsets, std::string method) {
  Packing packing{std::move(offsets), 0, std::move(method)};
  for (size_t i = 0; i < piece.buffers.size(); ++i)
    packing.height = std::max(packing.height, packing.offsets[i] + piece.buffers[i].bytes);
  return packing;
}

Packing packing_of(const Piece& piece, const FlexiblePlacer& placer, Start start) {
  return packing_of(piece, offsets_of(placer, piece.buffers.size()),
                    start == Start::FromBest ? "pressed together" : "ejection search");
}

void halve_the_way(const Piece& piece, int64_t target, Start start, Effort& effort, Packing& best) {
  const std::vector<FlexibleInterval> intervals = intervals_of(piece);
  const int64_t unit = unit_of(piece);
  const bool presses_best = start == Start::FromBest;
  int64_t missed = target - unit;
  for (const int64_t steps = effort.left() / (presses_best ? presses : attempts);
       effort.left() >= steps && best.height > target;) {
    const int64_t capacity = halfway(missed, best, unit);
    if (capacity >= best.height) return;
    FlexiblePlacer placer(intervals, {}, capacity);
    if (presses_best) placer.start_from(best.offsets);
    const bool found = placer.place(steps);
    effort.spend(steps - placer.steps_left());
    if (found)
      best = packing_of(piece, placer, start);
    else
      missed = capacity;
  }
}

// Ways to a packing within a capacity: from the best one there is, from orders of blocks, and from scratch.
class Starts {
 public:
  explicit Starts(const Piece& piece) : piece_(piece), intervals_(intervals_of(piece)) {}

  bool from_best(int64_t capacity, Packing& best) const {
    FlexiblePlacer placer(intervals_, {}, capacity);
    placer.start_from(best.offsets);
    if (!placer.place(steps_of_best)) return false;
    best = packing_of(piece_, placer, Start::FromBest);
    return true;
  }

  bool from_blocks(int64_t capacity, Packing& best) {
    return from_blocks(0, capacity, best) || from_blocks(1, capacity, best);
  }

  bool from_blocks(size_t share, int64_t capacity, Packing& best) {
    const OrdersOfBlocks& orders = orders_of_blocks(share);
    const FlexiblePlacer empty(orders.intervals, {}, capacity);
    for (const std::vector<int64_t>& offsets : orders.offsets) {
      FlexiblePlacer placer = empty;
      placer.start_from(offsets);
      if (!placer.place(steps_of_order)) continue;
      std::vector<int64_t> of_buffers;
      for (size_t i = 0; i < piece_.buffers.size(); ++i)
        of_buffers.push_back(placer.offset(orders.blocks.block_of[i]) + orders.blocks.begin_bytes[i]);
      best = packing_of(piece_, std::move(of_buffers), "blocks pressed together");
      return true;
    }
    return false;
  }

  // The packing of the first start that finds one. Two run beside each other.
  bool from_scratch(int64_t capacity, Packing& best) const {
    const FlexiblePlacer empty(intervals_, {}, capacity);
    const int64_t steps = std::max(steps_of_start, rounds_of_start * empty.steps_to_place_each());
    for (int first = 0; first < starts_from_scratch; first += starts_at_once) {
      std::array<std::optional<Packing>, starts_at_once> some;
      std::atomic<bool> first_counts = false;  // and no other one
      parallel_for(some.size(), [&](size_t i) {
        const int start = first + static_cast<int>(i);
        FlexiblePlacer placer = empty;
        if (start > 0) placer.vary(static_cast<uint64_t>(start));
        if (!placer.place(steps, [&] { return i > 0 && first_counts; })) return;
        some[i] = packing_of(piece_, placer, Start::FromScratch);
        if (i == 0) first_counts = true;
      });
      const auto found = llvm::find_if(some, [](const std::optional<Packing>& packing) { return packing.has_value(); });
      if (found == some.end()) continue;
      best = std::move(**found);
      return true;
    }
    return false;
  }

 private:
  struct OrdersOfBlocks {
    Blocks blocks;
    std::vector<FlexibleInterval> intervals;
    std::vector<std::vector<int64_t>> offsets;  // by order
  };

  const OrdersOfBlocks& orders_of_blocks(size_t share) {
    while (orders_.size() <= share) {
      OrdersOfBlocks& orders = orders_.emplace_back();
      orders.blocks = blocks_of(piece_, piece_.lower_bound / block_shares[orders_.size() - 1]);
      orders.intervals = intervals_of(orders.blocks.piece);
      Effort effort(steps_of_orders);
      visit_orders(orders.blocks.piece, effort,
                   [&](Packing packing) { orders.offsets.push_back(std::move(packing.offsets)); });
    }
    return orders_[share];
  }

  const Piece& piece_;
  std::vector<FlexibleInterval> intervals_;
  std::vector<OrdersOfBlocks> orders_;
};

}  // namespace

void search_by_ejection(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  halve_the_way(piece, target, Start::FromScratch, effort, best);
}

void press_together(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  halve_the_way(piece, target, Start::FromBest, effort, best);
}

void come_near(const Piece& piece, int64_t target, Packing& best) {
  const int64_t unit = unit_of(piece), near = piece.lower_bound + piece.lower_bound / near_share;
  Starts starts(piece);
  int64_t missed = target / unit * unit - unit;
  bool has_missed = false, from_scratch = false;
  while (best.height > target) {
    const int64_t capacity = halfway(missed, best, unit);
    if (capacity >= best.height) return;
    if (starts.from_best(capacity, best) || starts.from_blocks(capacity, best)) continue;
    if (from_scratch || best.height <= near) return;
    from_scratch = has_missed;
    if (has_missed && !starts.from_scratch(capacity, best)) return;
    if (!std::exchange(has_missed, true)) missed = capacity;
  }
}

}  // namespace plimsoll::placement
