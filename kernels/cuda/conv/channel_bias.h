#pragma once

#include "kernels/cuda/common/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// y[i] += bias[i / inner % channels], for y of `count` elements of dtype f32, bf16 or f16; bias has that dtype too.
void add_channel_bias(cudaStream_t stream, Scalar dtype, void* y, const void* bias, int64_t count, int64_t channels,
                      int64_t inner);

}  // namespace plimsoll::cuda
