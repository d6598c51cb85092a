#pragma once

// Placement in memory whose pages can be seen at a second address: a buffer begins with the end of one page, goes on
// with whole pages and ends with the beginning of another, wherever these are, and a window shows them side by side. So
// hardly a free byte is in vain, and an arena need be hardly higher than the bytes that are alive at once.

#include "passes/place/placement.h"

namespace plimsoll {

struct PagedPlacement {
  // One for each interval, in order. From windows_begin on those of windows, which lie one behind the other.
  std::vector<int64_t> offsets;
  int64_t height_bytes = 0;
  int64_t lower_bound_bytes = 0;              // the largest sum of bytes alive at one step
  std::vector<std::vector<int64_t>> windows;  // of each the pages that it shows, in order
};

// Offsets are multiples of `alignment`, of which a page is a multiple. The lowest of up to `tries` layouts that
// `max_share` above the lower bound is enough for; the first of them is found for all intervals. The same input gives
// the same answer on every machine.
PagedPlacement place_in_pages(llvm::ArrayRef<Interval> intervals, int64_t alignment, int64_t page_bytes, int tries,
                              double enough_share);

}  // namespace plimsoll
