#pragma once

// Which reductions may become part of a group of elementwise nodes.

#include "ir/graph.h"

namespace plimsoll {

// May the node be a reduction of a body?
bool is_fusible_reduction(const Graph& graph, const Node& node);

// The shape of the elements that the node is about: of what a reduction reads, of what any other node gives.
const Shape& iterated_shape(const Graph& graph, const Node& node);

// What a group with reductions computes once for each of their results, not for each element: these results and what is
// made of them alone. Empty where the group has no reduction.
struct GroupTotals {
  std::vector<ValueId> values;
  bool has(ValueId value) const;
};

// The totals of a group of nodes in order, whose elements have that shape. None where no kernel has such a body, as
// ir/fused_form.h tells, or where one would be slow.
std::optional<GroupTotals> totals_of(const Graph& graph, llvm::ArrayRef<NodeId> nodes, llvm::ArrayRef<int64_t> shape);

}  // namespace plimsoll
