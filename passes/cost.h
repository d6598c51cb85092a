#pragma once

// The roofline: what an instruction takes at least on a device.

#include "ir/device.h"
#include "ir/op_def.h"

namespace plimsoll {

struct Cost {
  double flops = 0;
  int64_t bytes_moved = 0;    // operands read plus results written, each once
  double predicted_us = 0;    // max(flops / peak, bytes / bandwidth) + launch gap
};

Cost cost_of(const Graph& graph, const Node& node, const DeviceDescription& device);

}  // namespace plimsoll
