#pragma once

// What fuse-epilogues does with batch norms beside convolutions that are products of pixels.

#include "passes/rewrite/match.h"

namespace plimsoll {

// A batch_norm reads moments that the convolution before it makes.
bool fuse_norm_moments(Graph& graph, NodeId norm);
// The same of a rank's own batch_moments.
bool fuse_own_moments(Graph& graph, NodeId moments);
// Gradients of batch norms, batch_norm_grad and batch_norm_sums, have their sums made with the conv_dx in front of
// them.
class GradientSumsFuser {
 public:
  explicit GradientSumsFuser(Graph& graph) : graph_(graph), order_(graph) {}
  bool fuse(NodeId gradient);

 private:
  // Which operand of the gradient, dy or more_dy, is a conv_dx to be fused with; empty: none.
  llvm::StringRef operand_to_fuse(const Node& gradient) const;

  Graph& graph_;
  NodeOrder order_;
};

}  // namespace plimsoll
