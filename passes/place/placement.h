#pragma once

// Static placement: gives every buffer of a schedule its byte offset in one
// arena so that buffers alive at the same step never share a byte, and keeps
// the arena as low as it can (the dynamic storage allocation problem).

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstdint>
#include <string>
#include <vector>

namespace plimsoll {

// One buffer: its size and the schedule steps at which it is alive, inclusive.
struct Interval {
  int64_t bytes = 0;
  int32_t first = 0;
  int32_t last = 0;  // last >= first
};

struct PlacementOptions {
  int64_t alignment = 256;     // every offset is a multiple
  double seconds = 2.0;        // of search, see ir/support/search_effort.h
  int64_t capacity_bytes = 0;  // a height at which the search ends, where that is above the lower bound
  int64_t close_bytes = 0;     // a height at which no further search begins
  bool peak_orders = false;    // also tries greedy orders that begin with what is alive at the peak
  // Asked once greedy orders are through, with the height they come to, which the search never exceeds: whether it goes
  // on from there. Arenas of many buffers get no more than these orders.
  llvm::function_ref<bool(int64_t height_bytes)> goes_on = nullptr;
};

struct Placement {
  std::vector<int64_t> offsets;   // one for each interval, in order
  int64_t height_bytes = 0;       // the largest end of any interval, sizes rounded up to the alignment
  int64_t lower_bound_bytes = 0;  // largest sum of bytes alive at one step; no placement is lower
  std::string method;             // what placed the piece that decides the height, for the plan report
};

// The same input gives the same answer on every machine.
Placement place_intervals(llvm::ArrayRef<Interval> intervals, const PlacementOptions& options = {});

}  // namespace plimsoll
