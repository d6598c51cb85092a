#include "passes/analysis/cost_model.h"

#include "ir/fused_body.h"
#include "ir/machine/cluster.h"

#include <algorithm>

namespace plimsoll {
namespace {

// Of the operands that go through the matrix units, if any do.
std::optional<DType> matrix_dtype(const Graph& graph, const Node& node) {
  if (node.op->precision != Precision::Low || node.operands.empty()) return std::nullopt;
  return graph.type(node.operands[0]).dtype;
}

double collective_us(const Graph& graph, const Node& node, const DeviceDescription& device) {
  if (node.op->name == "transfer") return 0;  // its two ends cost
  const MeshAxis axis = parse_axis(node.attrs.get_string("axis")).value_or(MeshAxis::Data);
  if (node.attrs.has("peer")) {
    const ValueId moved = node.operands.empty() ? node.results[0] : node.operands[0];
    return device.ranks_us(axis, static_cast<double>(graph.type(moved).bytes()));
  }
  if (node.attrs.has("root")) return device.ranks_us(axis, static_cast<double>(graph.type(node.results[0]).bytes()));
  const Type &read = graph.type(node.operands[0]), &written = graph.type(node.results[0]);
  const bool sums_whole = read.elements() == written.elements() && !node.op->moves_elements;
  const int64_t whole_bytes = read.elements() < written.elements() ? written.bytes() : read.bytes();
  return device.ranks_us(axis, bytes_sent(whole_bytes, node.attrs.get_int("ranks"), sums_whole));
}

}  // namespace

KernelCandidate chosen_kernel(const Graph& graph, const Node& node, const KernelCatalog& catalog) {
  llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
  return catalog.candidates(*node.op, OpCall(*node.op, node.attrs, types), result_types(graph, node)).front();
}

Cost cost_of(const Graph& graph, const Node& node, const DeviceDescription& device) {
  Cost cost;
  cost.flops = flops_of(graph, node);
  for (ValueId operand : node.operands)
    if (operand != ValueId::None) cost.bytes_moved += graph.type(operand).bytes();
  for (ValueId result : node.results) cost.bytes_moved += graph.type(result).bytes();
  cost.bytes_moved -= unread_bytes(OpCall(*node.op, node.attrs, operand_types(graph, node)));
  if (node.op->engine == Engine::Ranks) {
    cost.predicted_us = collective_us(graph, node, device);
    return cost;
  }
  if (is_copy(node.op->engine)) {
    double gb_per_s = node.op->engine == Engine::ToHost ? device.to_host_gb_per_s : device.from_host_gb_per_s;
    double copied = static_cast<double>(graph.type(node.results[0]).bytes());
    cost.bytes_moved = 2 * graph.type(node.results[0]).bytes();  // it may read a part of its operand
    cost.predicted_us = copied / ((gb_per_s > 0 ? gb_per_s : device.memory_gb_per_s) * 1e3) + device.launch_us;
    return cost;
  }
  const double roofline_us = device.roofline_us(cost.flops, cost.bytes_moved, matrix_dtype(graph, node));
  cost.predicted_us = roofline_us / device.efficiency_of(node.op->name) + device.launch_us;
  return cost;
}

double predicted_us(const Graph& graph, const Node& node, const KernelCandidate& kernel,
                    const DeviceDescription& device) {
  return kernel.predicted_us > 0 ? kernel.predicted_us : cost_of(graph, node, device).predicted_us;
}

}  // namespace plimsoll
