#pragma once

// Chooses which elementwise nodes of a graph become one op each. Works on the graph as it is and changes nothing of it.

#include "ir/graph.h"

#include <vector>

namespace plimsoll {

// Nodes that become one op at the place of one of them.
struct FusionGroup {
  std::vector<NodeId> nodes;  // in the order of the graph
  // What the op reads and what others read of it, in that order. Constants of one element are part of the body.
  std::vector<ValueId> operands, results;
  NodeId place = NodeId::None;  // one of the nodes
};

struct FusionChoice {
  std::vector<FusionGroup> groups;  // of two nodes and more, in the order of their places
  int64_t saved_bytes = 0;          // reads and writes that the groups' nodes had among each other
};

FusionChoice choose_fusions(const Graph& graph);

// Do dropouts among the nodes draw by the value as their counter? Otherwise it is elements like any other operand.
bool is_drawn_from(const Graph& graph, llvm::ArrayRef<NodeId> nodes, ValueId value);

// A constant of one element, whatever its shape.
bool is_one_number(const Graph& graph, ValueId value);

}  // namespace plimsoll
