#pragma once

// Which values of a graph depend on which: sweeps over the nodes in order, linear in the graph.

#include "ir/op_def.h"

namespace plimsoll {

// What counts as a dependence: reading a value, or reading it in a way that a gradient can follow.
enum class Flow : uint8_t { Data, Gradient };

// By value: does it depend on one of `sources`, as gradients flow? The sources do, and otherwise floats alone.
std::vector<bool> find_dependent(const Graph& graph, llvm::ArrayRef<ValueId> sources);

// By value: does one of `sinks` depend on it? The sinks do.
std::vector<bool> find_contributing(const Graph& graph, llvm::ArrayRef<ValueId> sinks, Flow flow);

// By node: does an output, an update or another stage depend on it?
std::vector<bool> find_needed(const Graph& graph);

// Is one of the values in the set? Absent operands are not.
bool any_in(llvm::ArrayRef<ValueId> values, const std::vector<bool>& set);

// The values of a forward graph, its trained states marked, that parameters decide.
struct ParameterValues {
  std::vector<bool> alone;    // by value: states and constants decide it
  std::vector<bool> trained;  // by value: a gradient passes it on its way to a trained state

  explicit ParameterValues(const Graph& graph);
};

}  // namespace plimsoll
