#pragma once

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// y[i] += bias[i / inner % channels], for y of n elements of f32, bf16 or f16; the bias has y's type.
[[nodiscard]] cudaError_t add_channel_bias(Scalar type, void* y, const void* bias, int64_t n, int64_t channels,
                                           int64_t inner, cudaStream_t stream);

}  // namespace plimsoll::cuda
