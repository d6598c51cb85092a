#pragma once

// Copies whose intervals are as long as the layout of the arena has room for, where the arena is too full for both the
// buffers and the intervals that live bytes alone would allow.

#include "passes/budget/copy_lives.h"
#include "passes/offload/overlap.h"
#include "passes/place/placement.h"

#include <memory>
#include <optional>
#include <vector>

namespace plimsoll {

inline constexpr double max_waste = 1.01;           // factor of the live bytes that a layout may take
inline constexpr double max_slowdown = 1.002;       // for a layout with less waste
inline constexpr double max_hard_slowdown = 1.003;  // where it is pressed hard

struct PackedCopies {
  Overlap overlap;
  int64_t live_bytes = 0, height_bytes = 0;                   // at the peak, and of the arena
  std::vector<int64_t> offset_of_value, offset_of_workspace;  // by value that opens a buffer, and by node; -1: none
};

// What several searches for layouts of a function with the same intervals look for, once one of them has.
struct LooserLayouts;
class KnownLayouts {
 public:
  KnownLayouts();
  LooserLayouts& looser() { return *looser_; }

 private:
  std::shared_ptr<LooserLayouts> looser_;
};

bool is_wasteful(const PackedCopies& copies);

// Lays the function out within 0.5 % more than what is alive with the intervals of `wide`, or where that is not found
// within 1, 2.5 or 5 %, with shorter ones where they do not fit. The step takes at least as long as with `wide`. None
// where such a layout is not found. It is looked for from one start.
std::optional<PackedCopies> pack_tightly(const FunctionWithCopies& function, const Overlap& wide,
                                         const PlacementOptions& options, KnownLayouts& known);

// The layout, or where it wastes much one that is found from some starts, which takes several times as long.
PackedCopies pack_more_tightly(const FunctionWithCopies& function, const Overlap& wide, const PackedCopies& tight,
                               const PlacementOptions& options, KnownLayouts& known);

// Of some layouts those that are lower than every faster one, by falling height. Of those that take up to
// `max_slowdown` longer than one that wastes more than `max_waste`, the lowest stands for all.
std::vector<PackedCopies> worth_trying(std::vector<PackedCopies> layouts);

// Layouts from 9 % above what is alive down to `tight`, each lower than the one before and slower; none takes less
// time than `wide`, and none is lower than `tight`. They are worth trying, all of them.
std::vector<PackedCopies> pack_step_by_step(const FunctionWithCopies& function, const Overlap& wide,
                                            const PackedCopies& tight, const PlacementOptions& options,
                                            KnownLayouts& known);

// The layout brought down to where it no longer wastes much, by more work than all layouts get; it may take up to
// `max_hard_slowdown` longer. None where none is found.
std::optional<PackedCopies> press_hard(const FunctionWithCopies& function, const PackedCopies& high,
                                       const PlacementOptions& options);

// The layout of the function once its copies are issued as `packed.overlap` says.
BufferPlacement placement_of(const PackedCopies& packed, const Graph& graph, const BufferAssignment& assigned,
                             int64_t alignment);

}  // namespace plimsoll
