#pragma once

// Copies whose intervals are as long as the layout of the arena has room for, where the arena is too full for both the
// buffers and the intervals that live bytes alone would allow.

#include "passes/budget/copy_lives.h"
#include "passes/offload/overlap.h"
#include "passes/place/placement.h"

#include <optional>
#include <vector>

namespace plimsoll {

inline constexpr double max_waste = 1.01;      // factor of the live bytes that a layout may take
inline constexpr double max_slowdown = 1.002;  // for a layout with less waste

struct PackedCopies {
  Overlap overlap;
  int64_t live_bytes = 0, height_bytes = 0;                   // at the peak, and of the arena
  std::vector<int64_t> offset_of_value, offset_of_workspace;  // by value that opens a buffer, and by node; -1: none
};

// From how many starts tight layouts are searched; some take several times as long as one.
enum class Starts : uint8_t { One, Some };

// Lays the function out within 0.5 % more than what is alive with the intervals of `wide`, or where that is not found
// within 1, 2.5 or 5 %, with shorter ones where they do not fit. The step takes at least as long as with `wide`. None
// where such a layout is not found.
std::optional<PackedCopies> pack_tightly(const FunctionWithCopies& function, const Overlap& wide, Starts starts,
                                         const PlacementOptions& options);

// Of some layouts those that are lower than every faster one, by falling height. Of those that take up to
// `max_slowdown` longer than one that wastes more than `max_waste`, the lowest stands for all.
std::vector<PackedCopies> worth_trying(std::vector<PackedCopies> layouts);

// Layouts from 9 % above what is alive down to `tight`, each lower than the one before and slower; none takes less
// time than `wide`, and none is lower than `tight`. They are worth trying, all of them.
std::vector<PackedCopies> pack_step_by_step(const FunctionWithCopies& function, const Overlap& wide,
                                            const PackedCopies& tight, const PlacementOptions& options);

// The layout of the function once its copies are issued as `packed.overlap` says.
BufferPlacement placement_of(const PackedCopies& packed, const Graph& graph, const BufferAssignment& assigned,
                             int64_t alignment);

}  // namespace plimsoll
