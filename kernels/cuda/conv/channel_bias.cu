#include "kernels/cuda/conv/channel_bias.h"

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/rows.cuh"

#include <algorithm>
#include <numeric>

// The bias of conv and conv_transpose behind cuDNN: reads and writes y [batch, channels, inner] once, in place.
// Channels that are last and whole 16-byte words are taken a word at a time: a thread stays at the channels of its
// first word.

namespace plimsoll::cuda {
namespace {

constexpr int64_t max_blocks = 65536;

template <typename T>
__global__ void add_bias_kernel(T* y, const T* bias, int64_t n, int64_t channels, int64_t inner) {
  const int64_t step = int64_t{gridDim.x} * block_threads;
  for (int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x; i < n; i += step)
    y[i] = narrow<T>(widen(y[i]) + widen(bias[i / inner % channels]));
}

template <typename T>
constexpr int word = 16 / static_cast<int>(sizeof(T));
constexpr int words_at_once = 4;

// `words` in all, `of_channels` of a pixel; the grid has a multiple of them in threads.
template <typename T>
__global__ void __launch_bounds__(block_threads)
    add_bias_words_kernel(T* y, const T* bias, int64_t words, int of_channels) {
  constexpr int length = word<T>;
  const int64_t step = int64_t{gridDim.x} * block_threads, first = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  const Packed<T, length> added = load_packed<length>(bias + first % of_channels * length);
  for (int64_t at = first; at < words; at += words_at_once * step) {
    Packed<T, length> read[words_at_once];
#pragma unroll
    for (int i = 0; i < words_at_once; ++i)
      if (at + i * step < words) read[i] = load_packed<length>(y + (at + i * step) * length);
#pragma unroll
    for (int i = 0; i < words_at_once; ++i) {
      if (at + i * step >= words) break;
      float sums[length];
#pragma unroll
      for (int e = 0; e < length; ++e) sums[e] = read[i][e] + added[e];
      store_packed(y + (at + i * step) * length, pack<T, length>(sums));
    }
  }
}

// So many blocks have a multiple of `of_channels` threads.
int64_t whole_blocks(int64_t wanted, int64_t of_channels) {
  const int64_t least = of_channels / std::gcd(of_channels, int64_t{block_threads});
  return std::max(wanted / least, int64_t{1}) * least;
}

}  // namespace

cudaError_t add_channel_bias(Scalar type, void* y, const void* bias, int64_t n, int64_t channels, int64_t inner,
                             cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return with_f32_math(type, [&]<typename T>(T*) {
    constexpr int length = word<T>;
    T* const to = static_cast<T*>(y);
    const T* const added = static_cast<const T*>(bias);
    const bool has_words = inner == 1 && channels % length == 0 && reinterpret_cast<uintptr_t>(y) % 16 == 0 &&
                           reinterpret_cast<uintptr_t>(bias) % 16 == 0;
    const int64_t wanted = divide_up(n, (has_words ? length * words_at_once : 1) * int64_t{block_threads});
    if (has_words) {
      const int64_t blocks = whole_blocks(std::min(wanted, max_blocks), channels / length);
      add_bias_words_kernel<<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(
          to, added, n / length, static_cast<int>(channels / length));
    } else {
      add_bias_kernel<<<static_cast<unsigned>(std::min(wanted, max_blocks)), block_threads, 0, stream>>>(
          to, added, n, channels, inner);
    }
  });
}

}  // namespace plimsoll::cuda
