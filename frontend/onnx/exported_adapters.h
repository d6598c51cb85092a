#pragma once

// Adapters (LoRA, DoRA) that a model already has: exports of PEFT's wrapper. Exporters rename their matrices, transpose
// them, and store equal ones, such as every B before the first step, once; where nodes come from tells them apart.

#include "frontend/onnx/provenance.h"

#include <map>
#include <set>

namespace plimsoll {

// A matrix of an adapter, its magnitudes, or a parameter of a module that PEFT saves whole beside them.
struct ExportedParameter {
  std::string key;          // in PEFT's files: "base_model.model.layers.0.q_proj.lora_A.weight"
  std::string initializer;  // several may have one
  Type type;                // as here: A [rank, inputs], B [outputs, rank], of an embedding A [rows, rank]
  bool transposed = false;  // the initializer is the transpose
};

// What DoRA multiplies the results of a linear layer by: magnitudes over the norms of the rows of W + scale B A.
struct ExportedFactor {
  std::string module;              // its path
  std::string a, b, magnitude;     // keys
  std::string weight;              // the initializer that the frozen layer reads
  bool weight_transposed = false;  // it is [inputs, outputs]
  double scale = 1;
  bool folded = false;  // the magnitudes' initializer holds the factor as it was when the model was exported
};

// What a node reads in place of an input: a module's factor, or the factor less one.
struct FactorOperand {
  std::string module;
  Shape shape;  // of what was there: [outputs] or [1, outputs]
  bool less_one = false;
};

using NodeInput = std::pair<const onnx::NodeProto*, int>;

struct ExportedAdapters {
  std::string prefix;  // what names of initializers have before PEFT's keys: "m." of a wrapper
  std::map<std::string, ExportedParameter> parameters;  // by key
  std::map<NodeInput, std::string> operands;            // which inputs of nodes are which of them
  std::map<std::string, std::string> initializers;      // whole initializers that are one of them
  std::map<std::string, ExportedFactor> factors;        // by module
  std::map<NodeInput, FactorOperand> factor_operands;
  std::set<const onnx::NodeProto*> unread;  // what computes norms, which nothing reads beside factors

  bool empty() const { return parameters.empty(); }
};

// Does the node read the transpose of the weight that PyTorch's layer has? A MatMul does, and a Gemm without transB.
bool reads_transpose(const onnx::NodeProto& node);

// Errors: magnitudes of DoRA that are not a linear layer's, adapters of two names, matrices that do not fit together.
Result<ExportedAdapters> find_exported_adapters(const onnx::GraphProto& graph);

}  // namespace plimsoll
