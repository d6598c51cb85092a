#pragma once

// Puts a plan's remats, offloads and reloads into a scheduled graph.

#include "ir/graph.h"
#include "passes/remat/remat.h"

namespace plimsoll {

// Moves updates that read nothing a step computes, such as the advance of the random counter, to the end, so that
// whatever reads the old value may be rematerialised until then.
void delay_free_updates(Graph& graph, llvm::ArrayRef<NodeId> writers);

// Adds each remat as a node named after the one it runs again, and copies to the host and back for the reloads; every
// use then reads the latest occurrence before it. Returns the new nodes. The graph computes what it computed before: a
// remat reads what the first run read, random counters included. `values` are the problem's.
std::vector<NodeId> rematerialise(Graph& graph, const RematPlan& plan, llvm::ArrayRef<ValueId> values);

}  // namespace plimsoll
