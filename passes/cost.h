#pragma once

// The roofline: what an instruction takes at least on a device.

#include "ir/device.h"
#include "ir/kernel_catalog.h"
#include "ir/op_def.h"

namespace plimsoll {

struct Cost {
  double flops = 0;
  int64_t bytes_moved = 0;    // operands read plus results written, each once
  double predicted_us = 0;    // max(flops / peak, bytes / bandwidth) + launch gap; of a copy between memories, its transfer
};

Cost cost_of(const Graph& graph, const Node& node, const DeviceDescription& device);

// What planning counts for a node that runs on `kernel`: the catalog's measurement, or else the roofline.
double predicted_us(const Graph& graph, const Node& node, const KernelCandidate& kernel, const DeviceDescription& device);

}  // namespace plimsoll
