#pragma once

// Which sends and receives between stages of a pipeline run beside computing, and what waits for them.

#include "passes/analysis/buffer_assignment.h"

namespace plimsoll {

// Does the graph meet other stages of a pipeline?
bool meets_stages(const Graph& graph);

// The sends and receives of a graph in its final order that something else runs beside. The first reader waits for what
// is received; the next send, or the first write of a state that is sent, waits for a send.
std::vector<CopyInFlight> transfers_in_flight(const Graph& graph, llvm::ArrayRef<NodeId> writers);

}  // namespace plimsoll
