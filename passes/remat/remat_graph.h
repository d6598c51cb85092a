#pragma once

// Between a scheduled graph and the recompute search on plain data.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"
#include "passes/remat/remat.h"

namespace plimsoll {

// Moves updates that read nothing a step computes, such as the advance of the random counter, to the end, so that what
// reads the old value may be repeated until then.
void delay_free_updates(Graph& graph, llvm::ArrayRef<NodeId> writers);

// A scheduled graph as the search sees it.
struct GraphRematProblem {
  RematProblem problem;
  std::vector<ValueId> values;  // by value of the problem
  // The problem's offloads are the largest values, and where the host cannot hold those, what it can of the values that
  // take longest to make for their bytes.
  std::vector<OffloadOption> largest, dearest;
};

// The graph's instructions in order, with the bytes and times that lay-out will give them; values in host memory have
// no bytes. An op is repeatable unless its record forbids it or it writes a state; one that reads a state may be
// repeated until the state is written. What forward makes may wait on the host, where that has `host_bytes` for it, the
// device has a way there and a copy takes longer than its start.
GraphRematProblem graph_remat_problem(const Graph& graph, llvm::ArrayRef<NodeId> writers,
                                      const DeviceDescription& device, const KernelCatalog& catalog,
                                      int64_t host_bytes = 0);

// Adds the remats as nodes named after what they repeat, and copies to the host and back for the reloads, and lets
// every use read the latest occurrence before it. Gives the new nodes. The graph computes what it did: a repeat reads
// what the first run read, random counters included. `values` are the problem's.
std::vector<NodeId> rematerialise(Graph& graph, const RematPlan& plan, llvm::ArrayRef<ValueId> values);

}  // namespace plimsoll
