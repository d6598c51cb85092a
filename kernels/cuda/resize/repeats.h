#pragma once

// Resampling that repeats each element of x the same number of times down and across, and its gradient, which adds the
// repetitions up: y[l, i, w, j, c] = x[l, w, c] for all i < down and j < across.

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace plimsoll::cuda {

// x is [lines, width, inner] and y [lines, down, width, across, inner]. A line of y has fewer than 2^31 bytes.
struct Repeats {
  int64_t lines = 1, width = 1, inner = 1;
  int down = 1, across = 1;
};

[[nodiscard]] cudaError_t repeat(const Repeats& shape, Scalar type, void* y, const void* x, cudaStream_t stream);
// Sums are f32 and run in the order of dy.
[[nodiscard]] cudaError_t sum_repeats(const Repeats& shape, Scalar type, void* dx, const void* dy, cudaStream_t stream);

}  // namespace plimsoll::cuda
