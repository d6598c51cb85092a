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

// An elementwise node of forward, and in order the nodes, itself the last, that make its result again in backward.
struct Remake {
  NodeId node = NodeId::None;
  std::vector<NodeId> nodes;
};

// The elementwise nodes of forward whose results backward makes again inside its own ops, so that they are not saved.
// All readers in backward are such ops, and what is read for it takes no more bytes than the result and is read in
// backward anyway. Later nodes come first, since what they are made of again is read in backward then.
std::vector<Remake> choose_remakes(const Graph& graph);

// Do dropouts among the nodes draw by the value as their counter? Otherwise it is elements like any other operand.
bool is_drawn_from(const Graph& graph, llvm::ArrayRef<NodeId> nodes, ValueId value);

// A constant of one element, whatever its shape.
bool is_one_number(const Graph& graph, ValueId value);

}  // namespace plimsoll
