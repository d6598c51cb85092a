#pragma once

// Placement in memory whose pages can be seen at a second address: a buffer begins with the end of one page, goes on
// with whole pages and ends with the beginning of another, wherever these are, and a window shows them side by side. So
// hardly a free byte is in vain, and an arena need be hardly higher than the bytes that are alive at once.

#include "passes/place/placement.h"

#include <limits>
#include <optional>

namespace plimsoll {

struct PagedPlacement {
  // One for each interval, in order. From windows_begin on those of windows, which lie one behind the other.
  std::vector<int64_t> offsets;
  int64_t height_bytes = 0;
  int64_t lower_bound_bytes = 0;              // the largest sum of bytes alive at one step
  std::vector<std::vector<int64_t>> windows;  // of each the pages that it shows, in order
};

// Offsets are multiples of `alignment`; that and a page are powers of two, and the page is the larger. Heights are
// tried one below the other, each with the work of placing all intervals up to `tries` times in a few ways, until none
// is found or one is `enough_share` above the lower bound. `below_bytes` is the height of a layout that few tries
// found: there is none where more tries find no lower one, and always one without it. The same input gives the same
// answer on every machine.
std::optional<PagedPlacement> place_in_pages(llvm::ArrayRef<Interval> intervals, int64_t alignment, int64_t page_bytes,
                                             int tries, double enough_share,
                                             int64_t below_bytes = std::numeric_limits<int64_t>::max());

}  // namespace plimsoll
