#pragma once

#include "kernels/cuda/common/image_pitches.h"
#include "kernels/cuda/conv/dense_tiles.h"
#include "kernels/cuda/conv/dense_weight_tiles.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// How images lie in memory.
struct DensePitches {
  ImagePitches x, y;
};

// The weight gradient of a convolution without groups on Hopper's warpgroups: dw of x and dy, these in `type`, a 16-bit
// float, and dw in `to`: `type` or f32. Sums are f32 in a fixed order. Workspace: tiles.workspace() floats.
[[nodiscard]] cudaError_t dense_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                   const DenseWeightTiles& tiles, float* workspace, cudaStream_t stream,
                                   const DensePitches& pitches = {});

// y = conv(x, w) + bias on the same, tensors in `type`; bias [channels of y], or null. Where tiles are of a gradient, y
// is dx, made of dy and w, and there is no bias.
[[nodiscard]] cudaError_t dense_convolution(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                            const DenseTiles& tiles, int multiprocessors, cudaStream_t stream,
                                            const DensePitches& pitches = {});

}  // namespace plimsoll::cuda
