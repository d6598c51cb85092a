#pragma once

// Where a forward graph may be split along the batch.

#include "ir/graph.h"

namespace plimsoll {

// Values that all of what backward will pass goes through, in graph order: behind one, no other value that has a
// gradient is read.
std::vector<ValueId> find_single_value_cuts(const Graph& graph);

}  // namespace plimsoll
