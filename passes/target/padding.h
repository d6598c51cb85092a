#pragma once

// Which nodes should work on longer dimensions, with padding behind their end, so that the rows of matrix products of
// 16-bit operands begin at 16-byte borders.

#include "ir/graph.h"
#include "ir/op_def.h"

#include <map>
#include <optional>
#include <set>
#include <vector>

namespace plimsoll {

// A node that works on padding in one dimension of its operands and results, as if one rank had parts that reach beyond
// the end of the whole. A node may do so in several dimensions.
struct PaddedCall {
  NodeId node;
  DividedCall call;
};

struct PaddingChoice {
  std::vector<PaddedCall> calls;  // in the order of their nodes
  int64_t products = 0;           // how many of them have aligned rows then
  // Of forward: what products take less, and what copies to longer dimensions and back take, as bytes that memory moves
  // in that time.
  int64_t saved_bytes = 0, copied_bytes = 0;
};

// A dimension of a value.
using DimOfValue = std::pair<ValueId, int64_t>;

struct PaddingCosts {
  int64_t multiple;       // rows are padded to a multiple of so many elements
  int64_t kernel_bytes;   // that memory moves in the time that a kernel takes beside its work
  int64_t left_size = 0;  // as in passes/target/left_products.h; such products stay as they are
};

// The dimensions that the library wants aligned, of a product of 16-bit operands: the last one of each operand and of
// the result, where it is no multiple. Empty for other nodes.
std::vector<DimOfValue> odd_rows(const Graph& graph, const Node& node, const PaddingCosts& costs);

// The padding of that dimension, and of all that are padded with it, that takes least time; none where products stay
// as they are. `seen` takes the dimensions about which it has decided.
std::optional<PaddingChoice> choose_padding(const Graph& graph, DimOfValue dim, const PaddingCosts& costs,
                                            std::set<DimOfValue>& seen);

}  // namespace plimsoll
