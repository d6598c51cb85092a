#pragma once

#include "kernels/cuda/common/scalar.h"
#include "kernels/cuda/conv/space_to_batch_sizes.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// Images and phases begin at 16-byte borders. They have less than 2^30 rows, and a row less than 2^30 pieces of 16
// bytes.
[[nodiscard]] cudaError_t split_phases(void* phases, const void* image, const Phases& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t join_phases(void* image, const void* phases, const Phases& sizes, cudaStream_t stream);

// sum += part, of a 16-bit float; the first part is taken as the sum.
[[nodiscard]] cudaError_t add_part(float* sum, Scalar type, const void* part, bool first, int64_t n,
                                   cudaStream_t stream);

}  // namespace plimsoll::cuda
