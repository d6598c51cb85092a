#pragma once

// What must hold of every graph and program between passes. A failure is a bug of ours or of a hand-written
// text, never of the model. Linear in the graph.

#include "ir/graph.h"

#include <optional>

namespace plimsoll {

// Structure (order, links, use lists, names), types (each node's equal its op's inference), states, outputs,
// updates.
Status verify(const Graph& graph);

// Each function, and that states of one name are the same in all of them.
Status verify(const Program& program);

// Of an update that gives only a piece of the next value of a state on the host, one of several that follow each other:
// the state's element at which it begins.
std::optional<int64_t> begin_of_piece(const Graph& graph, const Update& update);

}  // namespace plimsoll
