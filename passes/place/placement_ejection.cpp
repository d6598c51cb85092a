#include "passes/place/flexible_placement.h"
#include "passes/place/placement_problem.h"

#include <numeric>

namespace plimsoll::placement {
namespace {

constexpr int attempts = 3;  // capacities, each with as much of the effort
constexpr int presses = 8;   // the same, where one starts from the packing that there is

enum class Start : uint8_t { FromScratch, FromBest };

void halve_the_way(const Piece& piece, int64_t target, Start start, Effort& effort, Packing& best) {
  std::vector<FlexibleInterval> intervals;
  int64_t unit = 0;
  for (const Buffer& b : piece.buffers) {
    const Life life{b.first, b.last};
    intervals.push_back({b.bytes, life, life, life});
    unit = std::gcd(unit, b.bytes);
  }
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
    best = {{}, 0, presses_best ? "pressed together" : "ejection search"};
    for (size_t i = 0; i < intervals.size(); ++i) {
      best.offsets.push_back(placer.offset(i));
      best.height = std::max(best.height, placer.offset(i) + intervals[i].bytes);
    }
  }
}

}  // namespace

void search_by_ejection(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  halve_the_way(piece, target, Start::FromScratch, effort, best);
}

void press_together(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  halve_the_way(piece, target, Start::FromBest, effort, best);
}

}  // namespace plimsoll::placement
