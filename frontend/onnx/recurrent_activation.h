#pragma once

// The activation functions that RNN, GRU and LSTM nodes name in attributes.

#include "frontend/onnx/node_context.h"

namespace plimsoll {

struct RecurrentActivation {
  std::string name;  // lower case
  double alpha = 0, beta = 0;
};

// One list entry a function and direction, the defaults where the node names none.
std::vector<RecurrentActivation> read_activations(NodeContext& n, llvm::ArrayRef<llvm::StringLiteral> defaults,
                                                  int64_t directions);
ValueId emit_activation(NodeContext& n, const RecurrentActivation& activation, ValueId x);

}  // namespace plimsoll
