#pragma once

// Where the batch of a model may be split into chunks, and into how many. Neither depends on a budget.

#include "ir/graph.h"

namespace plimsoll {

// The first cut, and the last cuts that still have a half, a quarter, ... of its bytes behind them.
std::vector<ValueId> regions_to_try(const Graph& graph);
// Chunk counts that divide the batch, each about twice the one before; with more than one `asked` for that count alone.
std::vector<int64_t> chunks_to_try(int64_t batch, int64_t asked);
// The share of the graph's nodes that stand behind the value.
double share_behind(const Graph& graph, ValueId value);

}  // namespace plimsoll
