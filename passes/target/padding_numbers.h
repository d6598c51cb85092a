#pragma once

// What stands in padding: zeros where it was copied there, and what elementwise ops make of zeros behind that.

#include "passes/target/padding.h"

namespace plimsoll {

// How a node can work on padding; None: it cannot.
enum class PaddedKind : uint8_t { None, Product, Move, Elementwise };
PaddedKind padded_kind(const Graph& graph, const Node& node);

// By dimension, where it is no zero.
using PaddingNumbers = std::map<DimOfValue, double>;

// What the node's results have in their padding if its operands have these numbers there. None where the node must not
// work on padding: the number would be unknown or infinite, gradients would be, or the padding would add to a sum.
std::optional<double> padding_behind(const Graph& graph, const PaddedCall& each, const PaddingNumbers& numbers);

}  // namespace plimsoll
