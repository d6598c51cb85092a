#pragma once

// Which initializers of a model are weights that the file has in 4 or 8 bits: they become states as they are stored,
// however small, and no constants that fold into floats.

#include "frontend/onnx/tensor.h"

#include "llvm/ADT/StringSet.h"

namespace plimsoll {

// Names of the codes, scales and zero points of matrices that nodes of the main graph dequantise. Vectors, such as
// biases in i32, stay arithmetic.
llvm::StringSet<> find_quantised_weights(const onnx::GraphProto& graph);

}  // namespace plimsoll
