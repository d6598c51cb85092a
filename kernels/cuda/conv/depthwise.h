#pragma once

#include "kernels/cuda/conv/depthwise_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// Convolutions of each channel alone, tensors in `type`: f32, bf16 or f16. fits_depthwise holds, and
// fits_depthwise_tiles for those with `tiles` in their name, which take 16-bit floats alone and work on the matrix
// units. Sums are f32 in a fixed order.

// y = conv(x, w) + bias; bias [channels] in `type`, or null.
[[nodiscard]] cudaError_t depthwise(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                    const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_tiles(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                          const ConvolutionSizes& sizes, cudaStream_t stream);

// dx of dy and w.
[[nodiscard]] cudaError_t depthwise_dx(Scalar type, void* dx, const void* dy, const void* w,
                                       const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_tiles_dx(Scalar type, void* dx, const void* dy, const void* w,
                                             const ConvolutionSizes& sizes, cudaStream_t stream);

// dw of x and dy, in `to`: `type` or f32. Workspace: workspace_bytes of DepthwiseRows or of DepthwiseWeightTiles.
[[nodiscard]] cudaError_t depthwise_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                       const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_tiles_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                             const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);

}  // namespace plimsoll::cuda
