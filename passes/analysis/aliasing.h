#pragma once

// What the graph alone decides about shared bytes: views, and results that may be written over an operand.

#include "ir/op_def.h"

namespace plimsoll {

// A node that becomes an instruction: constants are laid out once and views cost nothing.
bool is_instruction(const Node& node);
std::vector<NodeId> instructions_of(const Graph& graph);  // in order

// The value that owns the bytes of `value`: itself unless a view.
ValueId root_of(const Graph& graph, ValueId value);

// Every reader of the bytes of `value`, through views, as instruction nodes.
llvm::SmallVector<NodeId, 4> readers_of(const Graph& graph, ValueId value);

// `result` may take over the bytes of `root` if the node is their last reader.
struct InPlacePair {
  ValueId result, root;
};

// The pairs that the node's record allows, in its order: of equal bytes, and with no other operand that reads the root.
// This is the one rule of in-place reuse; what differs between planning steps is only when they know the last reader.
llvm::SmallVector<InPlacePair, 2> in_place_pairs(const Graph& graph, const Node& node);

}  // namespace plimsoll
