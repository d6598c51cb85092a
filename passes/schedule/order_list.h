#pragma once

// Start orders: list scheduling under several rules of what to run next.

#include "passes/schedule/order_graph.h"

namespace plimsoll::ordering {

// Which node runs when none at hand would free memory.
enum class Otherwise { Earliest, Latest, SmallestGrowth };

struct ListRule {
  int32_t look_ahead;   // nodes that one node may pull along to prove that it frees memory
  Otherwise otherwise;  // by node number, by newest ready, by bytes
};

std::vector<int32_t> list_schedule(const OrderGraph& graph, ListRule rule);

}  // namespace plimsoll::ordering
