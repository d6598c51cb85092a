#pragma once

// Activation functions that attributes of RNN, GRU and LSTM nodes name.

#include "frontend/onnx/node_context.h"

namespace plimsoll {

struct RecurrentActivation {
  std::string name;  // lower case
  double alpha = 0, beta = 0;
};

// Returns one entry per function and direction, with the defaults if the node names none.
std::vector<RecurrentActivation> read_activations(NodeContext& n, llvm::ArrayRef<llvm::StringLiteral> defaults,
                                                  int64_t directions);
ValueId emit_activation(NodeContext& n, const RecurrentActivation& activation, ValueId x);

}  // namespace plimsoll
