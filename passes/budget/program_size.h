#pragma once

// How long a program is, which decides how much of it can be searched and what its CUDA graphs take.

#include "ir/machine/device.h"
#include "ir/op_def.h"

namespace plimsoll {

// A program with more nodes is searched for remats only, since copies take too long to search for, and only down to
// this share of its plain peak without states.
inline constexpr int64_t max_nodes_searched_whole = 1200;
inline constexpr double long_min_share = 0.8;

// Nodes that become instructions.
inline int64_t nodes_of(const Program& program) {
  int64_t count = 0;
  for (const Graph& function : program.functions)
    for (NodeId id = function.first_node(); id != NodeId::None; id = function.node(id).next)
      count += !function.node(id).op->is_view();
  return count;
}

// Nodes that talk to other ranks.
inline int64_t collectives_of(const Program& program) {
  int64_t count = 0;
  for (const Graph& function : program.functions)
    for (NodeId id = function.first_node(); id != NodeId::None; id = function.node(id).next)
      count += function.node(id).op->engine == Engine::Ranks;
  return count;
}

// The device with the reserves that the program's graphs and ranks take. CUDA graphs were measured with up to 2.4
// launches per node; the libraries' reserve covers the difference. NCCL takes 0.18 MiB more for each collective in a
// CUDA graph: 150 of them held 0.8 GiB on two H200, 900 held 0.93.
inline DeviceDescription with_reserves(const DeviceDescription& device, const Program& program, int64_t ranks) {
  constexpr int64_t launches_per_node = 2, bytes_per_collective = 184 << 10;
  DeviceDescription reserved = device.with_graphs(launches_per_node * nodes_of(program)).with_ranks(ranks);
  if (ranks > 1 && device.collective_reserve_bytes > 0)
    reserved.reserves.push_back({"NCCL in CUDA graphs", bytes_per_collective * collectives_of(program)});
  return reserved;
}

}  // namespace plimsoll
