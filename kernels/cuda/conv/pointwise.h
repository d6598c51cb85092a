#pragma once

#include "kernels/cuda/conv/pointwise_chunks.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// Convolutions of one tap without groups, tensors in `type`: bf16 or f16. Sums are f32 in a fixed order.

// y = conv(x, w) + bias; bias [channels of y] in `type`, or null. fits_pointwise_chunks holds.
[[nodiscard]] cudaError_t pointwise_chunks(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                           const ConvolutionSizes& sizes, cudaStream_t stream);
// dx of dy and w.
[[nodiscard]] cudaError_t pointwise_chunks_dx(Scalar type, void* dx, const void* dy, const void* w,
                                              const ConvolutionSizes& sizes, cudaStream_t stream);
// dw of x and dy, in `to`: `type` or f32. fits_pointwise_chunk_sums holds. Workspace: workspace_bytes of
// PointwiseChunkSums.
[[nodiscard]] cudaError_t pointwise_chunks_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                              const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);

}  // namespace plimsoll::cuda
