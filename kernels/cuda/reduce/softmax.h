#pragma once

// Softmax, its logarithm, its limit and the gradients along the middle of x [outer, length, inner], all of one type.
// Results may lie over either operand, but for hardmax.

#include "kernels/scalar.h"
#include "kernels/strides.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

enum class SoftmaxKind : uint8_t { Plain, Log };

[[nodiscard]] cudaError_t softmax(SoftmaxKind kind, const AxisShape& shape, Scalar type, void* y, const void* x,
                                  cudaStream_t stream);
// From the result y: y * (dy - sum(y * dy)), or dy - exp(y) * sum(dy).
[[nodiscard]] cudaError_t softmax_grad(SoftmaxKind kind, const AxisShape& shape, Scalar type, void* dx, const void* y,
                                       const void* dy, cudaStream_t stream);
// 1 at the first largest element, 0 elsewhere.
[[nodiscard]] cudaError_t hardmax(const AxisShape& shape, Scalar type, void* y, const void* x, cudaStream_t stream);

}  // namespace plimsoll::cuda
