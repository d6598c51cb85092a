#pragma once

// A scheduled graph as the search on plain data sees it, and the plan that the search found put into the graph.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"
#include "passes/remat/remat.h"

namespace plimsoll {

struct GraphRematProblem {
  RematProblem problem;
  std::vector<ValueId> values;  // by value of the problem
  // The problem offers both lists. `dearest` is empty unless the host is too small for all of `largest`: then it holds
  // the values that take longest to make per byte, as many as the host has room for.
  std::vector<OffloadOption> largest, dearest;
};

// Ops have the bytes and times that lay-out will give them; values in host memory have no bytes. An op is repeatable
// unless its record forbids it or it writes a state; an op that reads a state may run again until the state is written.
// A value that forward makes is offered for offload if `host_bytes` is above 0, the device has a link to the host and
// its copy takes longer than a few launches. So are, if they are asked for, values that backward makes long before they
// are read, where these are much of what is alive.
enum class Offered : uint8_t { SavedAlone, AlsoOfBackward };
GraphRematProblem graph_remat_problem(const Graph& graph, llvm::ArrayRef<NodeId> writers,
                                      const DeviceDescription& device, const KernelCatalog& catalog,
                                      int64_t host_bytes = 0, Offered offered = Offered::SavedAlone);

// Moves updates that read nothing a step computes, such as the advance of the random counter, to the end, so that
// whatever reads the old value may be rematerialised until then.
void delay_free_updates(Graph& graph, llvm::ArrayRef<NodeId> writers);

// Adds each remat as a node named after the one it runs again, and copies to the host and back for the reloads; every
// use then reads the latest occurrence before it. Returns the new nodes. The graph computes what it computed before: a
// remat reads what the first run read, random counters included. `values` are the problem's.
std::vector<NodeId> rematerialise(Graph& graph, const RematPlan& plan, llvm::ArrayRef<ValueId> values);

}  // namespace plimsoll
