#pragma once

// Adapters (LoRA) that a model already has: exports of PEFT's wrapper. Exporters rename their matrices, transpose them,
// and store equal ones, such as every B before the first step, once; where nodes come from tells them apart.

#include "frontend/onnx/provenance.h"

#include <map>

namespace plimsoll {

// A matrix of an adapter, or a parameter of a module that PEFT saves whole beside them.
struct ExportedParameter {
  std::string key;          // in PEFT's files: "base_model.model.layers.0.q_proj.lora_A.weight"
  std::string initializer;  // several may have one
  Type type;                // as here: A [rank, inputs], B [outputs, rank], of an embedding A [rows, rank]
  bool transposed = false;  // the initializer is the transpose
};

struct ExportedAdapters {
  std::string prefix;  // what names of initializers have before PEFT's keys: "m." of a wrapper
  std::map<std::string, ExportedParameter> parameters;                     // by key
  std::map<std::pair<const onnx::NodeProto*, int>, std::string> operands;  // which inputs of nodes are which of them
  std::map<std::string, std::string> initializers;                         // whole initializers that are one of them

  bool empty() const { return parameters.empty(); }
};

// Does the node read the transpose of the weight that PyTorch's layer has? A MatMul does, and a Gemm without transB.
bool reads_transpose(const onnx::NodeProto& node);

// Errors: magnitudes of DoRA, adapters of two names, matrices that do not fit together.
Result<ExportedAdapters> find_exported_adapters(const onnx::GraphProto& graph);

}  // namespace plimsoll
