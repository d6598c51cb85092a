#pragma once

#include "kernels/cuda/conv/space_to_batch_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// Images and sub-images begin at 16-byte borders. They have less than 2^30 rows, and a row less than 2^30 pieces of 16
// bytes.
[[nodiscard]] cudaError_t space_to_batch(void* sub_images, const void* image, const SpaceToBatch& sizes,
                                         cudaStream_t stream);
[[nodiscard]] cudaError_t batch_to_space(void* image, const void* sub_images, const SpaceToBatch& sizes,
                                         cudaStream_t stream);

// sum += what a chunk of the batch gives, of a 16-bit float; the first chunk's is taken as the sum.
[[nodiscard]] cudaError_t add_chunk(float* sum, Scalar type, const void* chunk, bool first, int64_t n,
                                    cudaStream_t stream);

}  // namespace plimsoll::cuda
