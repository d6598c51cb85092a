#pragma once

#include "kernels/cuda/common/scalar.h"
#include "kernels/cuda/conv/space_to_depth_sizes.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// Both of one 16-bit float; `folded` begins at a 16-byte border. The fold has less than 2^30 rows, and a row of it or
// of the image less than 2^30 elements.
[[nodiscard]] cudaError_t fold_image(void* folded, const void* image, const Fold& fold, cudaStream_t stream);

// The other way, from a fold without pads and with all pixels. Of one 16-bit float, or image is f32 and folded is
// `from`. The image has less than 2^30 elements.
[[nodiscard]] cudaError_t unfold_image(Scalar to, void* image, Scalar from, const void* folded, const Fold& fold,
                                       cudaStream_t stream);

}  // namespace plimsoll::cuda
