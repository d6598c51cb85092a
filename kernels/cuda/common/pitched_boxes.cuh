#pragma once

// Boxes of images whose pixels lie apart or overlap.

#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/common/image_pitches.h"

namespace plimsoll::cuda {

// As map_image. Pitches are multiples of 8 elements.
[[nodiscard]] cudaError_t map_image(CUtensorMap& map, const void* image, const ImageBoxes& boxes,
                                    const ImagePitches& pitches);

}  // namespace plimsoll::cuda
