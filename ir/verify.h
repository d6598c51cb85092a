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

// Whether a matrix of the second type can be the transpose of one of the first.
inline bool is_transpose(const Type& of, const Type& type) {
  return of.rank() == 2 && type == Type(of.dtype, {of.shape[1], of.shape[0]});
}

// Of an update that gives only a piece of the next value of a state on the host, one of several that follow each other:
// the state's element at which it begins.
std::optional<int64_t> begin_of_piece(const Graph& graph, const Update& update);

}  // namespace plimsoll
