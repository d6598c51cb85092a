#pragma once

// Labels of rows on the device, and the sum of the rows' losses.

#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/loss/loss.h"

namespace plimsoll::cuda {

struct Label {
  int64_t index;
  bool ignored, valid;  // valid: names a class

  __device__ Label(const ClassLabels& labels, int64_t row, int64_t classes)
      : index(labels.type == Scalar::I64 ? static_cast<const int64_t*>(labels.labels)[row]
                                         : static_cast<const int32_t*>(labels.labels)[row]),
        ignored(labels.ignores && index == labels.ignore_index),
        valid(index >= 0 && index < classes) {}

  __device__ bool counts() const { return !ignored && valid; }
};

__device__ inline float class_weight(const ClassLabels& labels, int64_t c) {
  return labels.weights ? labels.weights[c] : 1.0f;
}

// The gradient of one row's loss: dloss with the reduction undone.
__device__ inline float row_gradient(const ClassLabels& labels, const float* dloss, const float* weight, int64_t row) {
  if (labels.reduction == LossReduction::None) return dloss[row];
  return labels.reduction == LossReduction::Mean ? *dloss / *weight : *dloss;
}

// Adds up losses and weights of all rows into the scalars that the op gives; with no reduction only the weights.
cudaError_t reduce_losses(LossReduction reduction, int64_t rows, float* loss, float* weight, const float* losses,
                          const float* weights, float* parts, cudaStream_t stream);
// The weight alone, of the labels: the same bits.
cudaError_t sum_label_weights(const ClassLabels& labels, int64_t classes, int64_t rows, float* weight, float* parts,
                              cudaStream_t stream);

}  // namespace plimsoll::cuda
