#pragma once

// Lowers the peak of an order by rearranging what stands around it.

#include "passes/schedule/order_graph.h"

namespace plimsoll::ordering {

inline constexpr int32_t largest_window = 20;

// The best order of the nodes at [begin, end), everything else left in place: exact, over all sets of
// nodes that can have run. False when none is lower or more than `state_limit` sets come up.
bool reorder_window(Schedule& schedule, int32_t begin, int32_t end, int64_t state_limit);

// Takes buffers out of the peak by running their remaining touchers before it, or all of their
// touchers after it, together with the nodes these need. False when no such move helps.
bool move_out_of_peak(Schedule& schedule);

}  // namespace plimsoll::ordering
