#pragma once

// How long a program is, which decides how much of it can be searched and what its CUDA graphs take.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"
#include "ir/op_def.h"
#include "ir/plan/snapshot_bytes.h"
#include "ir/support/strings.h"
#include "passes/analysis/dependence.h"
#include "passes/job.h"

#include "llvm/ADT/SmallSet.h"

namespace plimsoll {

// A program with more nodes is searched for remats only, since copies take too long to search for, and only down to
// this share of its plain peak without states.
inline constexpr int64_t max_nodes_searched_whole = 1200;
inline constexpr double long_min_share = 0.8;

template <typename Predicate>
int64_t count_nodes(const Program& program, Predicate predicate) {
  int64_t count = 0;
  for (const Graph& function : program.functions)
    for (NodeId id = function.first_node(); id != NodeId::None; id = function.node(id).next)
      count += predicate(*function.node(id).op);
  return count;
}

// Nodes that become instructions.
inline int64_t nodes_of(const Program& program) {
  return count_nodes(program, [](const OpDef& op) { return !op.is_view(); });
}

// Nodes that become instructions for each chunk again: updates, and what parameters alone decide, stay one for all.
inline int64_t nodes_of_rows(const Program& program) {
  int64_t count = 0;
  for (const Graph& function : program.functions) {
    const ParameterValues parameters(function);
    for (NodeId id = function.first_node(); id != NodeId::None; id = function.node(id).next) {
      const Node& node = function.node(id);
      count += node.phase != Phase::Update && !node.op->is_view() && !parameters.alone[index_of(node.results[0])];
    }
  }
  return count;
}

// Does NCCL do the collective within arenas that ranks reach into? It does so for sums of floats and for gathers.
inline bool is_done_in_arenas(const Graph& graph, const Node& node) {
  const Collective& ranks = node.op->collective;
  if (ranks.from == ranks.to || node.attrs.has("root")) return false;
  const DType dtype = graph.type(node.operands[0]).dtype;
  return ranks.from == MeshPlacement::Divided || dtype == DType::F32 || is_16_bit_float(dtype);
}

inline RankTraffic traffic_of(const Program& program) {
  RankTraffic traffic;
  llvm::SmallSet<int64_t, 4> peers;
  for (const Graph& function : program.functions)
    for (NodeId id = function.first_node(); id != NodeId::None; id = function.node(id).next) {
      const Node& node = function.node(id);
      if (node.op->engine != Engine::Ranks) continue;
      ++traffic.collectives;
      if (!node.op->collective)
        peers.insert(node.attrs.get_int("peer"));
      else if (!is_done_in_arenas(function, node))
        traffic.needs_buffers[static_cast<size_t>(*parse_axis(node.attrs.get_string("axis")))] = true;
    }
  traffic.stages_met = static_cast<int64_t>(peers.size());
  return traffic;
}

// What the pinned arena may take of a rank's share of its host: the rest is for loading, of evaluation at most as much
// as of a step, and for the cache. 0: the host's budget is not limited.
inline int64_t budget_of_host_arena(const TrainingRequest& request, const Program& program,
                                    const DeviceDescription& device, int64_t snapshot_bytes) {
  const int64_t budget_bytes = request.host_budget_of_rank(snapshot_bytes);
  if (budget_bytes == 0) return 0;
  int64_t input_bytes = 0;
  for (const Graph& function : program.functions)
    for (ValueId input : function.inputs) input_bytes += function.type(input).bytes();
  if (request.evaluation.wanted) input_bytes *= 2;
  return std::max<int64_t>(1, budget_bytes - request.cache_bytes - loading_bytes(input_bytes, device.backend));
}

// What the first rank holds back for a snapshot of the states of all these programs; 0: nothing is asked for.
inline int64_t held_for_snapshot(const TrainingRequest& request, llvm::ArrayRef<const Program*> programs) {
  if (!request.checkpoints) return 0;
  std::vector<const Graph*> functions;
  for (const Program* program : programs)
    for (const Graph& function : program->functions) functions.push_back(&function);
  return snapshot_bytes(functions);
}

// May the program call a kernel whose name begins so?
inline bool may_call(const Program& program, const KernelCatalog& catalog, llvm::StringRef kernels) {
  for (const Graph& function : program.functions)
    for (NodeId id = function.first_node(); id != NodeId::None; id = function.node(id).next) {
      const Node& node = function.node(id);
      if (node.op->engine != Engine::Compute || node.op->is_view()) continue;
      const llvm::SmallVector<const Type*, 4> types = operand_types(function, node);
      for (const KernelCandidate& each :
           catalog.candidates(*node.op, OpCall(*node.op, node.attrs, types), result_types(function, node)))
        if (starts_with(each.name, kernels)) return true;
    }
  return false;
}

// Does a convolution make several channels of one, in groups or of an image of one channel? Beside cuDNN's kernels for
// these a process holds more than beside its others.
inline bool spreads_single_channels(const Graph& function, const Node& node) {
  const bool makes_weights = node.op->name == "conv_dw";
  if (!makes_weights && node.op->name != "conv" && node.op->name != "conv_dx") return false;
  const Shape& w = function.type(makes_weights ? node.results[0] : node.operands[1]).shape;
  const int64_t of_group = node.attrs.get_int("channels_last") ? w.back() : w[1];
  return of_group == 1 && w[0] > node.attrs.get_int("groups", 1);
}

inline bool spreads_single_channels(const Program& program) {
  for (const Graph& function : program.functions)
    for (NodeId id = function.first_node(); id != NodeId::None; id = function.node(id).next)
      if (spreads_single_channels(function, function.node(id))) return true;
  return false;
}

// The device with the reserves that the program's kernels, graphs and ranks take. CUDA graphs were measured with up to
// 2.4 launches per node, and with a quarter of what a launch is given or less.
inline DeviceDescription with_reserves(const DeviceDescription& device, const Program& program,
                                       const KernelCatalog& catalog, const Mesh& mesh) {
  constexpr int64_t launches_per_node = 2;
  DeviceDescription held = device;
  llvm::erase_if(held.reserves, [&](const Reserve& each) {
    return !each.kernels.empty() && !may_call(program, catalog, each.kernels);
  });
  // On an H200 two networks held 3 and 5 MiB more than other reserves have, where others hold 5 to 20 less.
  constexpr int64_t single_channel_bytes = int64_t{8} << 20;
  if (device.backend == "cuda" && spreads_single_channels(program))
    held.reserves.push_back({"cuDNN's convolutions of single channels", single_channel_bytes});
  return held.with_graphs(launches_per_node * nodes_of(program)).with_ranks(mesh, traffic_of(program));
}

}  // namespace plimsoll
