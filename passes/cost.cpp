#include "passes/cost.h"

#include <algorithm>

namespace plimsoll {

Cost cost_of(const Graph& graph, const Node& node, const DeviceDescription& device) {
  Cost cost;
  cost.flops = flops_of(graph, node);
  for (ValueId operand : node.operands)
    if (operand != ValueId::None) cost.bytes_moved += graph.type(operand).bytes();
  for (ValueId result : node.results) cost.bytes_moved += graph.type(result).bytes();
  bool matrix = node.op->precision == Precision::Low && !node.operands.empty();
  double tflops = matrix ? device.matmul_tflops_for(graph.type(node.operands[0]).dtype) : device.vector_tflops;
  double compute_us = tflops > 0 ? cost.flops / (tflops * 1e6) : 0;
  if (node.op->channel != Channel::Compute) {
    double gb_per_s = node.op->channel == Channel::ToHost ? device.to_host_gb_per_s : device.from_host_gb_per_s;
    double copied = static_cast<double>(graph.type(node.results[0]).bytes());
    cost.predicted_us = copied / ((gb_per_s > 0 ? gb_per_s : device.memory_gb_per_s) * 1e3) + device.launch_us;
    return cost;
  }
  double memory_us = device.memory_gb_per_s > 0 ? static_cast<double>(cost.bytes_moved) / (device.memory_gb_per_s * 1e3) : 0;
  cost.predicted_us = std::max(compute_us, memory_us) + device.launch_us;
  return cost;
}

double predicted_us(const Graph& graph, const Node& node, const KernelCandidate& kernel, const DeviceDescription& device) {
  return kernel.predicted_us > 0 ? kernel.predicted_us : cost_of(graph, node, device).predicted_us;
}

}  // namespace plimsoll
