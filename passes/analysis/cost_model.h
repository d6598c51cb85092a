#pragma once

// What an instruction takes on a device: its roofline, corrected by what was measured.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"
#include "ir/op_def.h"

namespace plimsoll {

struct Cost {
  double flops = 0;
  int64_t bytes_moved = 0;  // operands read plus results written, each once
  // max(flops / peak, bytes / bandwidth) over the share of it that kernels of the op reach, what any kernel takes
  // beside it, and the launch gap; of a copy between memories, its transfer.
  double predicted_us = 0;
};

// The kernel that the node will run: the catalog's first candidate for its types.
KernelCandidate chosen_kernel(const Graph& graph, const Node& node, const KernelCatalog& catalog);

Cost cost_of(const Graph& graph, const Node& node, const DeviceDescription& device);

// What planning counts for a node that runs on `kernel`: the catalog's measurement, or else the roofline.
double predicted_us(const Graph& graph, const Node& node, const KernelCandidate& kernel,
                    const DeviceDescription& device);

}  // namespace plimsoll
