#pragma once

// Finds parameters that PyTorch's exporter changed. When it optimizes, it applies the first operations to small weights
// and stores the results as initializers with other names.

#include "frontend/onnx/provenance.h"
#include "frontend/onnx/tensor.h"

namespace plimsoll {

struct FoldedParameters {
  // Names of initializers that hold a parameter's numbers one to one, after a transpose, cut or concatenation. Training
  // them trains the parameter.
  llvm::StringMap<std::string> stand_ins;
  // Parameters that the file lacks, because they were folded into other values, are all zeros, or are not needed.
  std::vector<std::string> lost;
};

FoldedParameters find_folded_parameters(const onnx::GraphProto& graph, const ExportSignature& signature);

}  // namespace plimsoll
