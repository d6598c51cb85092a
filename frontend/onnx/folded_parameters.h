#pragma once

// What PyTorch's exporter does to parameters when it optimizes: small weights are folded together with what is done to
// them first, and take part in the model as initializers of another name.

#include "frontend/onnx/provenance.h"
#include "frontend/onnx/tensor.h"

namespace plimsoll {

struct FoldedParameters {
  // Initializers that hold a parameter's numbers one to one, by name: transposed, cut up or put together. Training
  // them is training the parameter.
  llvm::StringMap<std::string> stand_ins;
  // Parameters that the file has under no name: folded into something else, all zeros, or not needed.
  std::vector<std::string> lost;
};

FoldedParameters find_folded_parameters(const onnx::GraphProto& graph, const ExportSignature& signature);

}  // namespace plimsoll
