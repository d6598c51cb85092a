#pragma once

// How a body with reductions goes over its elements. Such a body is over tensors, since its shapes say what is reduced.
// All its reductions are over the same dimensions of the same shape, so that the elements are [outer, length, inner]
// and each total is of the `length` elements in the middle. Kernels compute elements one by one, and totals once each.

#include "ir/fused_body.h"

namespace plimsoll {

struct BodyForm {
  Shape whole, totals;  // of elements and of totals, which have 1 in place of each reduced dimension
  int64_t outer = 1, length = 1, inner = 1;
  // By value: is it a total, or made of totals alone? How many reductions, one behind another, does it wait for?
  std::vector<bool> is_total;
  std::vector<int> pass;
  // Elements are gone over as often: those of pass p read the totals of the reductions of pass p - 1. Results that are
  // elements are given in the last pass, since they may lie over operands.
  int passes = 1;

  int64_t total_count() const { return outer * inner; }
};

// May a body hold the reduction, by its op, attributes and types?
bool is_body_reduction(const OpDef& op);
bool fits_body_reduction(const OpCall& call, const Type& result);

bool has_reductions(const Graph& body);

// The form of a body that has reductions. Errors where kernels cannot go over it so.
Result<BodyForm> form_of(const Graph& body);

// The nodes that a pass computes elements by, in order, and those that totals of a pass are made by of reductions.
// Elements of earlier passes are computed again.
llvm::SmallVector<NodeId, 16> element_nodes(const Graph& body, const BodyForm& form, int pass);
llvm::SmallVector<NodeId, 8> total_nodes(const Graph& body, const BodyForm& form, int pass);
// The reductions of elements of a pass.
llvm::SmallVector<NodeId, 4> reductions_of(const Graph& body, const BodyForm& form, int pass);

}  // namespace plimsoll
