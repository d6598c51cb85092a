#pragma once

// Max and average pooling of [batch, channels, spatial...] or [batch, spatial..., channels]. Gradients gather: each
// element of dx adds what the windows over it give, in the order of the windows.

#include "kernels/pool_window.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// Tensors of fewer than 2^31 elements.
struct PoolShape : PoolWindow<int32_t> {
  int64_t batch, channels;
  bool channels_last;
};

// The first of the largest elements, NaN being larger than anything, and its number in the kernel, 255 where a window
// meets no input; y or choices may be null. Choices are of kernels of up to 254 elements.
[[nodiscard]] cudaError_t max_pool(const PoolShape& shape, Scalar type, void* y, uint8_t* choices, const void* x,
                                   cudaStream_t stream);
// The same with channels first; indices count the elements of x, with columns_first as if the first spatial dimension
// ran fastest.
[[nodiscard]] cudaError_t max_pool_with_indices(const PoolShape& shape, Scalar type, void* y, int64_t* indices,
                                                bool columns_first, const void* x, cudaStream_t stream);
[[nodiscard]] cudaError_t max_pool_grad(const PoolShape& shape, Scalar type, void* dx, const uint8_t* choices,
                                        const void* dy, cudaStream_t stream);

// Averages over the elements a window shares with the input, or with include_padding with the padded input.
[[nodiscard]] cudaError_t average_pool(const PoolShape& shape, Scalar type, bool include_padding, void* y,
                                       const void* x, cudaStream_t stream);
[[nodiscard]] cudaError_t average_pool_grad(const PoolShape& shape, Scalar type, bool include_padding, void* dx,
                                            const void* dy, cudaStream_t stream);

}  // namespace plimsoll::cuda
