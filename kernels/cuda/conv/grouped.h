#pragma once

#include "kernels/cuda/conv/grouped_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// Convolutions of groups on the matrix units, tensors in `type`, a 16-bit float; fits_grouped_tiles and fits hold. Sums
// are f32 in a fixed order.

// y = conv(x, w) + bias; bias [groups * y_channels] in `type`, or null.
[[nodiscard]] cudaError_t grouped_convolution(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                              const ConvolutionSizes& sizes, cudaStream_t stream);

// dx of dy and w.
[[nodiscard]] cudaError_t grouped_convolution_dx(Scalar type, void* dx, const void* dy, const void* w,
                                                 const ConvolutionSizes& sizes, cudaStream_t stream);

// dw of x and dy, in `to`: `type` or f32. Workspace: GroupedWeightTiles::workspace_bytes.
[[nodiscard]] cudaError_t grouped_convolution_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                                 const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);

// The same on Hopper, where fits_grouped_runs holds, or for dw fits_grouped_weight_runs; its workspace:
// GroupedWeightRuns::workspace_bytes.
[[nodiscard]] cudaError_t grouped_runs(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                       const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t grouped_runs_dx(Scalar type, void* dx, const void* dy, const void* w,
                                          const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t grouped_runs_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                          const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);

// The same on Hopper, where fits_grouped_lines holds; workspace of dw: GroupedLines::workspace_bytes.
[[nodiscard]] cudaError_t grouped_lines(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                        const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t grouped_lines_dx(Scalar type, void* dx, const void* dy, const void* w,
                                           const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t grouped_lines_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                           const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);

// The same of groups of 24 channels on Hopper, where fits_grouped_bands holds; workspace of dw:
// GroupedBands::workspace_bytes.
[[nodiscard]] cudaError_t grouped_bands(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                        const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t grouped_bands_dx(Scalar type, void* dx, const void* dy, const void* w,
                                           const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t grouped_bands_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                           const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);

// dx of dy and w with a stride of 2, where fits_grouped_squares holds.
[[nodiscard]] cudaError_t grouped_squares_dx(Scalar type, void* dx, const void* dy, const void* w,
                                             const ConvolutionSizes& sizes, cudaStream_t stream);

// The same on Hopper, where fits_grouped_stationary holds, or for dw fits_grouped_stationary_sums; its workspace:
// GroupedStationarySums::workspace_bytes. A value that is infinite in one group
// can turn results of other groups into NaNs, because their weights there are zeros.
[[nodiscard]] cudaError_t grouped_stationary(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                             const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t grouped_stationary_dx(Scalar type, void* dx, const void* dy, const void* w,
                                                const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t grouped_stationary_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                                const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);

// The same of 3 x 3 taps without groups on Hopper, where fits_packed_lines holds, or for dw fits_packed_sums; its
// workspace: PackedSums::workspace_bytes. A value that is infinite can turn results beside its window into NaNs,
// because weights behind windows are zeros.
[[nodiscard]] cudaError_t packed_lines(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                       const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t packed_lines_dx(Scalar type, void* dx, const void* dy, const void* w,
                                          const ConvolutionSizes& sizes, cudaStream_t stream);
[[nodiscard]] cudaError_t packed_lines_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                          const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream);

}  // namespace plimsoll::cuda
