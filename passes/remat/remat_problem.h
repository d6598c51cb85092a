#pragma once

// A scheduled graph as the search on plain data sees it.

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
// its copy takes longer than a few launches.
GraphRematProblem graph_remat_problem(const Graph& graph, llvm::ArrayRef<NodeId> writers,
                                      const DeviceDescription& device, const KernelCatalog& catalog,
                                      int64_t host_bytes = 0);

}  // namespace plimsoll
