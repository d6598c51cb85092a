#include "kernels/cuda/conv/channel_bias.h"

#include "kernels/cuda/common/rows.cuh"

#include <algorithm>

// The bias of conv and conv_transpose behind cuDNN: reads and writes y [batch, channels, inner] once, in place.

namespace plimsoll::cuda {
namespace {

constexpr int64_t max_blocks = 65536;

template <typename T>
__global__ void add_bias_kernel(T* y, const T* bias, int64_t n, int64_t channels, int64_t inner) {
  const int64_t step = int64_t{gridDim.x} * block_threads;
  for (int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x; i < n; i += step)
    y[i] = narrow<T>(widen(y[i]) + widen(bias[i / inner % channels]));
}

}  // namespace

cudaError_t add_channel_bias(Scalar type, void* y, const void* bias, int64_t n, int64_t channels, int64_t inner,
                             cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min(divide_up(n, block_threads), max_blocks));
  return with_f32_math(type, [&]<typename T>(T*) {
    add_bias_kernel<<<blocks, block_threads, 0, stream>>>(static_cast<T*>(y), static_cast<const T*>(bias), n, channels,
                                                          inner);
  });
}

}  // namespace plimsoll::cuda
