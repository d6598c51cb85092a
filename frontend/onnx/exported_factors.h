#pragma once

// The magnitudes of DoRA (Liu et al. 2024) in exports of PEFT's models. No gradient passes through the norms that they
// are divided by, and nothing in an ONNX graph says so; hence the arithmetic is recognised and its result replaced.

#include "frontend/onnx/exported_adapters.h"
#include "frontend/onnx/scoped_graph.h"

namespace plimsoll {

// An adapter's second layer, B, and the layer that it stands beside.
struct AdaptedLayer {
  std::string module;
  const onnx::NodeProto* second = nullptr;
  const onnx::NodeProto* frozen = nullptr;  // null: not a linear layer, or one without a stored matrix
  llvm::StringRef kind;                     // "an embedding"; empty: linear
};

// Adds magnitudes, factors and what they are read by. Does nothing to layers that have none.
// Errors: a factor that is computed in a way that is not PEFT's.
Status find_exported_factor(const ScopedGraph& graph, const AdaptedLayer& layer, ExportedAdapters& found);

// Notes which nodes of modules with factors are no longer read.
void find_unread_nodes(const ScopedGraph& graph, ExportedAdapters& found);

}  // namespace plimsoll
