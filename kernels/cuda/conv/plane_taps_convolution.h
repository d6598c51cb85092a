#pragma once

#include "kernels/cuda/conv/plane_taps.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// y = conv(x, w) + bias, tensors in `type`, a 16-bit float; bias [16], or null. takes_plane_taps holds.
[[nodiscard]] cudaError_t plane_taps(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                     const PlaneTaps& sizes, cudaStream_t stream);

[[nodiscard]] cudaError_t plane_taps_dx(Scalar type, void* dx, const void* dy, const void* w, const PlaneTaps& sizes,
                                        cudaStream_t stream);

// dw in `to`: `type` or f32. Sums are f32 in a fixed order. Workspace: sizes.workspace_bytes().
[[nodiscard]] cudaError_t plane_taps_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                        const PlaneTaps& sizes, float* workspace, cudaStream_t stream);

}  // namespace plimsoll::cuda
