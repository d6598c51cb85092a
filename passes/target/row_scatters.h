#pragma once

// Ops that combine whole rows of a value into the rows that indices name: gradients of lookups, and scatters.

#include "ir/graph.h"
#include "passes/analysis/plan_draft.h"

#include <optional>

namespace plimsoll {

// Combines whole rows of `x` into rows of the node's result.
struct RowScatter {
  NodeId node;
  ValueId indices;  // one for each row of x
  int64_t size = 0;
  llvm::StringLiteral x, base;  // operands; base: empty for zeros
  Attrs attrs;                  // of a segment_reduce that does the same
};

// Gives none where the node is no such op, of floats and with indices.
std::optional<RowScatter> match_row_scatter(const Graph& graph, NodeId node);

// The value that this one is a reshape of, past all reshapes.
ValueId below_reshapes(const Graph& graph, ValueId value);

// Rows of x, one for each index, as a type of two dimensions.
Type rows_of(const Graph& graph, const RowScatter& scatter);

// The first node that may read the value, as builders stand before it; None: no node does.
NodeId node_behind(const Graph& graph, ValueId value);

// What a call is predicted to take; for ever without a kernel of its own, or a prediction of it, so that nothing gains
// by it.
double us_of(const PlanDraft& draft, const OpCall& call);
// What a node is predicted to take by the kernel that is chosen for it.
double us_of(const PlanDraft& draft, const Graph& graph, NodeId id);

}  // namespace plimsoll
