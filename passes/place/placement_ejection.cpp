#include "passes/place/flexible_placement.h"
#include "passes/place/placement_problem.h"

#include <numeric>

namespace plimsoll::placement {
namespace {

constexpr int attempts = 3;  // capacities, each with as much of the effort
constexpr int presses = 8;   // the same, where one starts from the packing that there is

// A packing further above its bound than `near_share` is looked for there once one is found within `halfway_share`:
// pressed together from the best there is, then from scratch by some starts. Each gets at least what it takes to place
// every buffer some times, up to so much for the pressing and for all others. Of layouts that greedy orders leave 1 to
// 4 % above the bound, most are near it when they are pressed once.
constexpr double halfway_share = 0.025, near_share = 0.0095;
constexpr int starts_near = 3;
constexpr int64_t steps_to_press = 600'000'000, steps_of_starts = 180'000'000;
constexpr int64_t steps_of_start = 60'000'000, rounds_of_start = 8;

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

Packing packing_of(const FlexiblePlacer& placer, llvm::ArrayRef<FlexibleInterval> intervals, Start start) {
  Packing packing{{}, 0, start == Start::FromBest ? "pressed together" : "ejection search"};
  for (size_t i = 0; i < intervals.size(); ++i) {
    packing.offsets.push_back(placer.offset(i));
    packing.height = std::max(packing.height, placer.offset(i) + intervals[i].bytes);
  }
  return packing;
}

void halve_the_way(const Piece& piece, int64_t target, Start start, Effort& effort, Packing& best) {
  const std::vector<FlexibleInterval> intervals = intervals_of(piece);
  const int64_t unit = unit_of(piece);
  const bool presses_best = start == Start::FromBest;
  int64_t missed = target - unit;
  for (const int64_t steps = effort.left() / (presses_best ? presses : attempts);
       effort.left() >= steps && best.height > target;) {
    const int64_t capacity = missed + std::max(unit, (best.height - missed) / 2 / unit * unit);
    if (capacity >= best.height) return;
    FlexiblePlacer placer(intervals, {}, capacity);
    if (presses_best) placer.start_from(best.offsets);
    const bool found = placer.place(steps);
    effort.spend(steps - placer.steps_left());
    if (!found) {
      missed = capacity;
      continue;
    }
    best = packing_of(placer, intervals, start);
  }
}

// Whether it is found when the best is pressed together, or else by so many starts.
bool fits_below(int64_t capacity, int starts, llvm::ArrayRef<FlexibleInterval> intervals, Packing& best) {
  const FlexiblePlacer empty(intervals.vec(), {}, capacity);
  const int64_t steps = std::max(steps_of_start, rounds_of_start * empty.steps_to_place_each());
  FlexiblePlacer pressed = empty;
  pressed.start_from(best.offsets);
  if (pressed.place(std::min(steps, steps_to_press))) {
    best = packing_of(pressed, intervals, Start::FromBest);
    return true;
  }
  int64_t left = steps_of_starts;
  for (int start = 0; start < starts && left > 0; ++start) {
    FlexiblePlacer placer = empty;
    if (start > 0) placer.vary(static_cast<uint64_t>(start));
    const int64_t some = std::min(left, steps);
    left -= some;
    if (!placer.place(some)) continue;
    best = packing_of(placer, intervals, Start::FromScratch);
    return true;
  }
  return false;
}

}  // namespace

void search_by_ejection(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  halve_the_way(piece, target, Start::FromScratch, effort, best);
}

void press_together(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  halve_the_way(piece, target, Start::FromBest, effort, best);
}

void come_near(const Piece& piece, int64_t target, Packing& best) {
  const std::vector<FlexibleInterval> intervals = intervals_of(piece);
  const int64_t unit = unit_of(piece);
  const auto above = [&](double share) {
    return std::max(target, static_cast<int64_t>((1 + share) * static_cast<double>(piece.lower_bound))) / unit * unit;
  };
  const int64_t halfway = above(halfway_share), near = above(near_share);
  if (best.height > halfway && !fits_below(halfway, 0, intervals, best)) return;
  if (best.height > near) fits_below(near, starts_near, intervals, best);
}

}  // namespace plimsoll::placement
