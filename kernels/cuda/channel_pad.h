#pragma once

#include "kernels/cuda/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// padded [rows, padded_channels] = x [rows, channels] with zeros behind, both of one 16-bit float; padded_channels is a multiple of 8.
[[nodiscard]] cudaError_t pad_channels(void* padded, const void* x, int64_t rows, int64_t channels, int64_t padded_channels, cudaStream_t stream);

// x [rows, channels] = padded [rows, padded_channels] without its last channels; of one 16-bit float, or x is f32 and padded is `from`.
[[nodiscard]] cudaError_t drop_channels(Scalar to, void* x, Scalar from, const void* padded, int64_t rows, int64_t channels, int64_t padded_channels,
                                        cudaStream_t stream);

}  // namespace plimsoll::cuda
