#pragma once

// What the kernels of softmax have in common, those of rows that are too short for a warp each, and those of rows that
// registers hold.

#include "kernels/cuda/common/short_rows.cuh"
#include "kernels/cuda/reduce/held_rows.h"
#include "kernels/cuda/reduce/running_sum.cuh"
#include "kernels/cuda/reduce/softmax.h"

namespace plimsoll::cuda {

// Forward: a running sum, then the element relative to its logarithm.
template <SoftmaxKind kind>
__device__ float result_of(float x, const RunningSum& total) {
  if (kind == SoftmaxKind::Log) return x - total.log();
  return exp2f((x - total.largest) * log2_e) / total.sum;
}

// Backward: y * dy or dy summed, then the element's own part.
template <SoftmaxKind kind>
__device__ float term_of(float y, float dy) {
  return kind == SoftmaxKind::Log ? dy : y * dy;
}
template <SoftmaxKind kind>
__device__ float gradient_of(float y, float dy, float sum) {
  return kind == SoftmaxKind::Log ? dy - expf(y) * sum : y * (dy - sum);
}

[[nodiscard]] cudaError_t softmax_of_short_rows(SoftmaxKind kind, const RowsByLanes& rows, Scalar type, void* y,
                                                const void* x, cudaStream_t stream);
[[nodiscard]] cudaError_t softmax_grad_of_short_rows(SoftmaxKind kind, const RowsByLanes& rows, Scalar type, void* dx,
                                                     const void* y, const void* dy, cudaStream_t stream);

[[nodiscard]] cudaError_t softmax_of_held_rows(SoftmaxKind kind, const HeldRows& rows, Scalar type, void* y,
                                               const void* x, cudaStream_t stream);
[[nodiscard]] cudaError_t softmax_grad_of_held_rows(SoftmaxKind kind, const HeldRows& rows, Scalar type, void* dx,
                                                    const void* y, const void* dy, cudaStream_t stream);

[[nodiscard]] cudaError_t softmax_of_short_columns(SoftmaxKind kind, const AxisShape& shape, Scalar type, void* y,
                                                   const void* x, cudaStream_t stream);
[[nodiscard]] cudaError_t softmax_grad_of_short_columns(SoftmaxKind kind, const AxisShape& shape, Scalar type, void* dx,
                                                        const void* y, const void* dy, cudaStream_t stream);

}  // namespace plimsoll::cuda
