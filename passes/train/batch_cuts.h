#pragma once

// Where a forward graph may be split along the batch, and what of it parameters alone decide.

#include "ir/op_def.h"

namespace plimsoll {

// By node: does an output or an update depend on it?
std::vector<bool> find_needed(const Graph& graph);

// Of a forward graph with its trained states marked.
struct ParameterValues {
  std::vector<bool> alone;    // by value: states and constants decide it
  std::vector<bool> trained;  // by value: a gradient passes it on its way to a trained state

  explicit ParameterValues(const Graph& graph);
};

// Values that all of what backward will pass goes through, in graph order: behind one, no other value that has a
// gradient is read.
std::vector<ValueId> find_single_value_cuts(const Graph& graph);

}  // namespace plimsoll
