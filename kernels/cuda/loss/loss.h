#pragma once

// Losses over class labels. Scores [outer, stored, inner] of which only the first `classes` count; labels, and one loss
// a row, [outer, inner]. A label that is ignored costs nothing; one that names no class makes its loss and its gradient
// NaN.

#include "kernels/cuda/common/partials.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

enum class LossReduction : uint8_t { Mean, Sum, None };

struct ClassScores {
  int64_t outer, classes, inner;
  Scalar type;
  int64_t stored;  // more than classes only where inner is 1; the gradient there is 0

  constexpr int64_t rows() const { return outer * inner; }
};

struct ClassLabels {
  const void* labels;
  Scalar type;           // i64 or i32
  const float* weights;  // of the classes; null: all 1
  bool ignores;
  int64_t ignore_index;
  LossReduction reduction;
  float smoothing;
};

// loss (a scalar, or [rows] without reduction), lse [rows] and the summed weight of the labels, all f32. Workspace:
// loss_workspace(rows) floats.
[[nodiscard]] cudaError_t cross_entropy(const ClassScores& scores, const ClassLabels& labels, float* loss, float* lse,
                                        float* weight, const void* logits, float* workspace, cudaStream_t stream);
// dlogits may be logits. dloss is a scalar, or [rows] without reduction; dlse [rows], or null where it is 0.
[[nodiscard]] cudaError_t cross_entropy_grad(const ClassScores& scores, const ClassLabels& labels, void* dlogits,
                                             const void* logits, const float* lse, const float* weight,
                                             const float* dloss, const float* dlse, cudaStream_t stream);

// A loss and the gradient of its scores; dlogits may be logits. Workspace: loss_workspace(rows) floats.
struct LossWithGradient {
  ClassScores scores;
  ClassLabels labels;
  void* dlogits;
  float *loss, *lse, *weight;  // as cross_entropy gives them
  const void* logits;
  const float *dloss, *dlse;  // as cross_entropy_grad reads them
  float* workspace;
};
[[nodiscard]] cudaError_t cross_entropy_with_grad(const LossWithGradient& call, cudaStream_t stream);
// The same on Hopper, where inner is 1 and rows fit RowClusters (row_clusters.h).
[[nodiscard]] cudaError_t cross_entropy_in_clusters(const LossWithGradient& call, cudaStream_t stream);

// Minus the score at the label.
[[nodiscard]] cudaError_t nll_loss(const ClassScores& scores, const ClassLabels& labels, float* loss, float* weight,
                                   const void* log_probs, float* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t nll_loss_grad(const ClassScores& scores, const ClassLabels& labels, void* dlog_probs,
                                        const float* weight, const float* dloss, cudaStream_t stream);

}  // namespace plimsoll::cuda
