#pragma once

#include "kernels/cuda/conv/volume_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// y = conv(x, w) + bias on Hopper's warpgroups, tensors in `type`, a 16-bit float; bias [channels of y], or null. Where
// the sweep is of a gradient, y is dx, made of dy and w, and there is no bias. Workspace: sweep.packed_bytes().
[[nodiscard]] cudaError_t volume_convolution(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                             const VolumeSweep& sweep, void* workspace, cudaStream_t stream);

// dw of x and dy, these in `type` and dw in `to`: `type` or f32. Sums are f32 in a fixed order. Workspace:
// sums.workspace_bytes().
[[nodiscard]] cudaError_t volume_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                    const VolumeSums& sums, float* workspace, cudaStream_t stream);

}  // namespace plimsoll::cuda
