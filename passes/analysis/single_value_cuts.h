#pragma once

// Where a forward graph can be cut in two so that a single value with a gradient goes from one side to the other.

#include "ir/graph.h"

namespace plimsoll {

struct SingleValueCut {
  ValueId value;
  NodeId after;  // the last node before the cut
};

// Values that all of what backward will pass goes through, in graph order: behind one, no other value that has a
// gradient is read.
std::vector<SingleValueCut> find_single_value_cuts(const Graph& graph);

}  // namespace plimsoll
