#pragma once

// What lies between lookups of whole rows and the sums that take them: casts, reshapes, and one weight for each row or
// for each head of a row.

#include "ir/graph.h"

#include <optional>

namespace plimsoll {

// A value whose elements are, row after row, those of the looked up rows, times their weights.
struct GatheredRows {
  NodeId gather;
  ValueId table, indices;           // one index for each row
  ValueId weights = ValueId::None;  // one for each row and head; None: 1
  int64_t heads = 1;
  llvm::SmallVector<NodeId, 4> between;  // from the value down to the lookup
};

std::optional<GatheredRows> match_gathered_rows(const Graph& graph, ValueId value, int64_t rows);

// A sum over each head of the products of two looked up rows.
struct GatheredDots {
  NodeId node;
  GatheredRows left, right;  // without weights
  int64_t heads;
  llvm::SmallVector<NodeId, 8> between;  // all nodes below the sum but the lookups
};

std::optional<GatheredDots> match_gathered_dots(const Graph& graph, NodeId node);

}  // namespace plimsoll
