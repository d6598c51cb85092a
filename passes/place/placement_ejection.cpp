#include "passes/place/flexible_placement.h"
#include "passes/place/placement_problem.h"

#include <numeric>

namespace plimsoll::placement {
namespace {

constexpr int attempts = 3;  // capacities, each with as much of the effort

}  // namespace

void search_by_ejection(const Piece& piece, int64_t target, Effort& effort, Packing& best) {
  std::vector<FlexibleInterval> intervals;
  int64_t unit = 0;
  for (const Buffer& b : piece.buffers) {
    const Life life{b.first, b.last};
    intervals.push_back({b.bytes, life, life, life});
    unit = std::gcd(unit, b.bytes);
  }
  int64_t missed = target - unit;
  for (const int64_t steps = effort.left() / attempts; effort.left() >= steps && best.height > target;) {
    const int64_t capacity = missed + std::max(unit, (best.height - missed) / 2 / unit * unit);
    if (capacity >= best.height) return;
    FlexiblePlacer placer(intervals, {}, capacity);
    const bool found = placer.place(steps);
    effort.spend(steps - placer.steps_left());
    if (!found) {
      missed = capacity;
      continue;
    }
    best = {{}, 0, "ejection search"};
    for (size_t i = 0; i < intervals.size(); ++i) {
      best.offsets.push_back(placer.offset(i));
      best.height = std::max(best.height, placer.offset(i) + intervals[i].bytes);
    }
  }
}

}  // namespace plimsoll::placement
