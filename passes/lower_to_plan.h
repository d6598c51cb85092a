#pragma once

// The last pass: assignment, offsets, kernels and predicted times become plain data.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"
#include "ir/plan/plan.h"
#include "passes/analysis/buffer_assignment.h"

namespace plimsoll {

struct LoweringInput {
  const Program& program;                       // functions in final order
  llvm::ArrayRef<std::vector<NodeId>> writers;  // per function, from make_updates_writable
  const DeviceDescription& device;
  const KernelCatalog& catalog;
  int64_t budget_bytes;                             // 0: the device's memory; recorded, not enforced
  int64_t host_budget_bytes = 0;                    // of the host arena; 0: not limited; recorded, not enforced
  llvm::ArrayRef<std::vector<NodeId>> remats = {};  // per function, nodes that recompute; empty: none anywhere
  llvm::ArrayRef<std::vector<CopyInFlight>> copies =
      {};                        // per function, copies that run beside computing; empty: none anywhere
  double placement_seconds = 2;  // of work for each function's layout, see PlacementOptions
};

// Lays out the arena and fills slots, functions, states, constants, gradients, origins and times. The plan's
// model and training are the caller's.
Result<Plan> lower_to_plan(const LoweringInput& input);

}  // namespace plimsoll
