#pragma once

#include "kernels/cuda/conv/depthwise_volumes.h"
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

// Convolutions of each channel alone, tensors in `type`: f32, bf16 or f16. fits_depthwise_volumes holds. Sums are f32
// in a fixed order.

// y = conv(x, w) + bias; bias [channels] in `type`, or null.
[[nodiscard]] cudaError_t depthwise_volumes(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                            const DepthwiseVolumeSizes& sizes, cudaStream_t stream);
// dx of dy and w.
[[nodiscard]] cudaError_t depthwise_volumes_dx(Scalar type, void* dx, const void* dy, const void* w,
                                               const DepthwiseVolumeSizes& sizes, cudaStream_t stream);
// dw of x and dy, in `to`: `type` or f32. Workspace: workspace_bytes of DepthwiseVolumeWeights.
[[nodiscard]] cudaError_t depthwise_volumes_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                               const DepthwiseVolumeSizes& sizes, void* workspace, cudaStream_t stream);

// The same on the matrix units (sm_90), in a 16-bit float; fits_volume_bands holds.
[[nodiscard]] cudaError_t volume_bands(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                       const DepthwiseVolumeSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t volume_bands_dx(Scalar type, void* dx, const void* dy, const void* w,
                                          const DepthwiseVolumeSizes& sizes, cudaStream_t stream);
// fits_volume_band_weights holds. Workspace: workspace_bytes of VolumeBandWeights.
[[nodiscard]] cudaError_t volume_bands_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                          const DepthwiseVolumeSizes& sizes, void* workspace, cudaStream_t stream);

// The same where pixels are whole units of 8 channels (sm_90); fits_volume_windows holds.
[[nodiscard]] cudaError_t volume_windows(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                         const DepthwiseVolumeSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t volume_windows_dx(Scalar type, void* dx, const void* dy, const void* w,
                                            const DepthwiseVolumeSizes& sizes, cudaStream_t stream);
// fits_volume_window_weights holds. Workspace: workspace_bytes of VolumeWindowWeights.
[[nodiscard]] cudaError_t volume_windows_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                            const DepthwiseVolumeSizes& sizes, void* workspace, cudaStream_t stream);

}  // namespace plimsoll::cuda
