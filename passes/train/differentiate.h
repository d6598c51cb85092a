#pragma once

// Reverse-mode differentiation of a graph, by the gradient rules of the op records.

#include "ir/builder.h"

namespace plimsoll {

// Nodes, in graph order, at which a path from `wrt` to `loss` ends for gradients: by kind Missing those whose op has no
// gradient rule; by kind Zero those whose result does not change smoothly with the operands, such as a comparison, an
// index of a maximum or a cast to integers.
std::vector<NodeId> find_gradient_ends(const Graph& graph, ValueId loss, llvm::ArrayRef<ValueId> wrt,
                                       Gradient::Kind kind);

// Appends nodes that compute d(loss)/d(wrt[i]) * seed and returns their values; None where the loss does
// not depend on wrt[i]. `seed` has the loss's type. Only nodes between `wrt` and `loss` are visited, and what a rule
// does not read is not kept: a value lives on into backward only because some gradient asked for it.
// Errors name the node that cannot be differentiated.
Result<std::vector<ValueId>> differentiate(Graph& graph, ValueId loss, ValueId seed, llvm::ArrayRef<ValueId> wrt);

}  // namespace plimsoll
