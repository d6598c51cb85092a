#pragma once

// Which layers of a model get adapters.

#include "ir/graph.h"
#include "passes/job.h"

namespace plimsoll {

// Layers that read one weight, which one adapter belongs to.
struct AdaptableLayer {
  enum class Kind : uint8_t { Linear, Conv, Embedding } kind = Kind::Linear;
  std::string module;              // "layers.0.q_proj": its path in the model, without the wrapper's name
  ValueId weight = ValueId::None;  // the state; of a weight that the file has quantised, its codes
  Type type;                       // of the weight's floats, in the order of the file
  bool is_transposed = false;      // of a linear layer: the weight is [inputs, outputs], as that of GPT-2's Conv1D
  std::vector<NodeId> nodes;       // in order
};

// All linear layers, convolutions and embeddings of a forward graph whose weights are parameters, in order. `root` is
// what their names begin with and their paths do not.
std::vector<AdaptableLayer> find_adaptable_layers(const Graph& graph, llvm::StringRef root);

// Those that the patterns name. "all-linear" means all linear layers but those whose results are the scores that a loss
// over classes reads. A word means the modules of that path, or whose path ends in a dot and the word; another pattern
// is a regular expression for the whole path. Errors: a pattern that no layer matches, or that is none; two layers
// whose paths are equal.
Result<std::vector<AdaptableLayer>> choose_adapted_layers(const Graph& graph, llvm::ArrayRef<std::string> patterns,
                                                          llvm::StringRef root);

// Does some linear layer with an adapter read its weight as [inputs, outputs]?
bool adapts_transposed_weights(const Graph& graph);

// Notes among the numbers of the plan what files of its adapters say besides their matrices.
void describe_adapters(TrainingSummary& summary, const AdapterRequest& adapters, bool adapts_transposed);

}  // namespace plimsoll
