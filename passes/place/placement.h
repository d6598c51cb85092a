#pragma once

// Static placement: gives every buffer of a schedule its byte offset in one
// arena so that buffers alive at the same step never share a byte, and keeps
// the arena as low as it can (the dynamic assignment allocation problem).

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <string>
#include <vector>

namespace plimsoll {

// One buffer: its size and the schedule steps at which it is alive, inclusive.
struct Interval {
  int64_t bytes = 0;
  int32_t first = 0;
  int32_t last = 0;           // last >= first
  int64_t fixed_offset = -1;  // pinned there when >= 0; pinned buffers must not collide with each other
};

struct PlacementOptions {
  int64_t alignment = 256;    // every offset that is chosen here is a multiple
  double seconds = 2.0;       // how much work, on a machine of 2023; converted to step counts, no clock is read
  int64_t stop_at_bytes = 0;  // a height at or below this is good enough
};

struct Placement {
  std::vector<int64_t> offsets;   // one for each interval, in order
  int64_t height_bytes = 0;       // the largest end of any interval, sizes rounded up to the alignment
  int64_t lower_bound_bytes = 0;  // largest sum of bytes alive at one step, or end of a pin; none is lower
  std::string method;             // what placed the piece that decides the height, for the plan report
};

// The same input gives the same answer on every machine.
Placement place_intervals(llvm::ArrayRef<Interval> intervals, const PlacementOptions& options = {});

}  // namespace plimsoll
