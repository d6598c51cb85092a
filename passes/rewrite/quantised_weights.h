#pragma once

// Weights that a graph has as codes with scales, and makes floats of where it reads them.

#include "ir/graph.h"
#include "ir/op_def.h"

#include <map>

namespace plimsoll {

inline bool is_dequantize(const Node& node) {
  return node.op->name == "dequantize" || node.op->name == "dequantize_linear";
}

// States that are codes, scales or zero points of weights. With codes comes the weight that they stand for, with others
// None.
std::map<ValueId, ValueId> parts_of_quantised_weights(const Graph& graph);

}  // namespace plimsoll
