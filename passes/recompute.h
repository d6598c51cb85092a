#pragma once

// Between a scheduled graph and the recompute search on plain data.

#include "ir/device.h"
#include "ir/kernel_catalog.h"
#include "passes/fit/recompute.h"

namespace plimsoll {

// Moves updates that read nothing a step computes, such as the advance of the random counter, to the end, so that what reads
// the old value may be repeated until then.
void delay_free_updates(Graph& graph, llvm::ArrayRef<NodeId> writers);

// The graph's instructions in order, with the bytes and times that lay-out will give them. An op is repeatable
// unless its record forbids it or it writes a state; one that reads a state may be repeated until the state is written.
RecomputeProblem recompute_problem(const Graph& graph, llvm::ArrayRef<NodeId> writers, const DeviceDescription& device,
                                   const KernelCatalog& catalog);

// Adds the repeats as nodes named after what they repeat, and lets every use read the latest occurrence before it. Gives the
// new nodes. The graph computes what it did: a repeat reads what the first run read, random counters included.
std::vector<NodeId> apply_repeats(Graph& graph, llvm::ArrayRef<Repeat> repeats);

}  // namespace plimsoll
