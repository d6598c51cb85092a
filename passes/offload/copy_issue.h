#pragma once

// Puts the copies of a graph where their intervals begin.

#include "passes/analysis/buffer_assignment.h"
#include "passes/offload/overlap.h"

namespace plimsoll {

// Moves each copy to where it is issued and returns where each is waited for. `intervals` are those of a level of
// overlap_levels for the graph as it is.
std::vector<CopyInFlight> issue_copies(Graph& graph, llvm::ArrayRef<CopyInterval> intervals);

}  // namespace plimsoll
