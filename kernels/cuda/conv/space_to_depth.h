#pragma once

#include "kernels/cuda/conv/space_to_depth_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// Both of one 16-bit float; `blocks` begins at a 16-byte border. There are less than 2^30 rows of blocks, and a row of
// them or of the image has less than 2^30 elements.
[[nodiscard]] cudaError_t space_to_depth(void* blocks, const void* image, const SpaceToDepth& sizes,
                                         cudaStream_t stream);

// The other way, from blocks without pads and with all pixels. Of one 16-bit float, or the image is f32 and the blocks
// are `from`. The image has less than 2^30 elements.
[[nodiscard]] cudaError_t depth_to_space(Scalar to, void* image, Scalar from, const void* blocks,
                                         const SpaceToDepth& sizes, cudaStream_t stream);

}  // namespace plimsoll::cuda
