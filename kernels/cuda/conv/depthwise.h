#pragma once

#include "kernels/cuda/conv/depthwise_columns.h"
#include "kernels/cuda/conv/depthwise_images.h"
#include "kernels/cuda/conv/depthwise_pairs.h"
#include "kernels/cuda/conv/depthwise_sparse.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// Convolutions of each channel alone, tensors in `type`: f32, bf16 or f16. fits_depthwise holds, and
// fits_depthwise_bands, fits_depthwise_columns, fits_depthwise_lines, fits_depthwise_pairs, fits_depthwise_sparse and
// fits_depthwise_windows for those with these words in their name, but fits_depthwise_sparse_weights for
// depthwise_sparse_dw. These, but for lines, take 16-bit floats alone; bands, pairs and sparse products are of the
// matrix units. Sums are f32 in a fixed order.

// y = conv(x, w) + bias; bias [channels] in `type`, or null.
[[nodiscard]] cudaError_t depthwise(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                    const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_bands(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                          const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_images(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                           const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_lines(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                          const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_pairs(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                          const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_sparse(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                           const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_windows(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                            const ConvolutionSizes& sizes, cudaStream_t stream);

// dx of dy and w.
[[nodiscard]] cudaError_t depthwise_dx(Scalar type, void* dx, const void* dy, const void* w,
                                       const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_bands_dx(Scalar type, void* dx, const void* dy, const void* w,
                                             const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_images_dx(Scalar type, void* dx, const void* dy, const void* w,
                                              const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_lines_dx(Scalar type, void* dx, const void* dy, const void* w,
                                             const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_pairs_dx(Scalar type, void* dx, const void* dy, const void* w,
                                             const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_sparse_dx(Scalar type, void* dx, const void* dy, const void* w,
                                              const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_windows_dx(Scalar type, void* dx, const void* dy, const void* w,
                                               const ConvolutionSizes& sizes, cudaStream_t stream);

// dw of x and dy, in `to`: `type` or f32. Workspace: workspace_bytes of DepthwiseRows, DepthwiseWeightBands,
// DepthwiseColumns, DepthwiseImageWeights, DepthwiseLineWeights, DepthwiseSparseWeights or DepthwiseWeightWindows.
[[nodiscard]] cudaError_t depthwise_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                       const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_bands_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                             const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_columns_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                               const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_packed_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                              const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_images_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                              const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_lines_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                             const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_sparse_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                              const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);
[[nodiscard]] cudaError_t depthwise_windows_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                               const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);

}  // namespace plimsoll::cuda
