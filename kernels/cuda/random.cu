#include "kernels/cuda/random.h"

#include "kernels/cuda/elementwise_map.cuh"

#include <cmath>

namespace plimsoll::cuda {
namespace {

struct PhiloxBlock {
  uint32_t lanes[4];
};

__device__ PhiloxBlock philox(const RandomStream& stream, int64_t block) {
  const auto seed = static_cast<uint64_t>(stream.seed_and_step[0]);
  uint32_t key_low = static_cast<uint32_t>(seed), key_high = static_cast<uint32_t>(seed >> 32);
  uint32_t a = static_cast<uint32_t>(block), b = static_cast<uint32_t>(static_cast<uint64_t>(block) >> 32);
  uint32_t c = static_cast<uint32_t>(stream.seed_and_step[1]), d = stream.id;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * a, second = uint64_t{0xCD9E8D57} * c;
    a = static_cast<uint32_t>(second >> 32) ^ b ^ key_low;
    b = static_cast<uint32_t>(second);
    c = static_cast<uint32_t>(first >> 32) ^ d ^ key_high;
    d = static_cast<uint32_t>(first);
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  return {{a, b, c, d}};
}

// Kept is a word of at least `threshold`, which is 2^32 when nothing is.
template <typename T>
__global__ void __launch_bounds__(block_threads)
    dropout_kernel(RandomStream stream, uint64_t threshold, Compute<T> factor, T* y, const T* x, int64_t n) {
  constexpr int length = sizeof(T) == 2 ? 8 : 4;
  const int64_t run = int64_t{blockIdx.x} * block_threads + threadIdx.x, at = run * length, left = n - at;
  if (left <= 0) return;
  const int count = left < length ? static_cast<int>(left) : length;
  Vector<T, length> values = load_run<length>(x + at, true, count);
#pragma unroll
  for (int group = 0; group < length / 4; ++group) {
    const PhiloxBlock block = philox(stream, at / 4 + group);
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      T& value = values.at[4 * group + lane];
      value = narrow<T>(block.lanes[lane] >= threshold ? widen(value) * factor : Compute<T>(0));
    }
  }
  store_run(y + at, values, count);
}

// Without fused operations, so that the numbers are those of the host.
struct Uniform {
  double low, range;
  __device__ double operator()(const PhiloxBlock& block, int lane) const {
    return __dadd_rn(low, __dmul_rn(range, block.lanes[lane] * 0x1p-32));
  }
};

struct Normal {
  double mean, deviation;
  __device__ double operator()(const PhiloxBlock& block, int lane) const {
    const int pair = lane / 2 * 2;
    const double radius = sqrt(-2 * log((block.lanes[pair] + 1.0) * 0x1p-32));
    const double angle = 2 * 3.141592653589793 * block.lanes[pair + 1] * 0x1p-32;
    return __dadd_rn(mean, __dmul_rn(deviation, radius * (lane % 2 ? sin(angle) : cos(angle))));
  }
};

// A thread makes the four elements of one block.
template <typename Distribution>
__global__ void __launch_bounds__(block_threads)
    random_kernel(RandomStream stream, Distribution distribution, Scalar type, void* y, int64_t n) {
  const int64_t index = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (4 * index >= n) return;
  const PhiloxBlock block = philox(stream, index);
#pragma unroll
  for (int lane = 0; lane < 4; ++lane)
    if (4 * index + lane < n) store_any(y, type, 4 * index + lane, distribution(block, lane));
}

template <typename Distribution>
cudaError_t fill(const RandomStream& stream, const Distribution& distribution, Scalar type, void* y, int64_t n,
                 cudaStream_t on) {
  if (n == 0) return cudaSuccess;
  random_kernel<<<blocks_for((n + 3) / 4), block_threads, 0, on>>>(stream, distribution, type, y, n);
  return cudaGetLastError();
}

}  // namespace

cudaError_t dropout(const RandomStream& stream, double ratio, Scalar type, void* y, const void* x, int64_t n,
                    cudaStream_t on) {
  if (n == 0) return cudaSuccess;
  const auto threshold = static_cast<uint64_t>(std::ceil(ratio * 0x1p32));
  const double factor = ratio < 1 ? 1 / (1 - ratio) : 0;
  return with_float(type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    constexpr int length = sizeof(T) == 2 ? 8 : 4;
    dropout_kernel<<<blocks_for(n, int64_t{block_threads} * length), block_threads, 0, on>>>(
        stream, threshold, static_cast<Compute<T>>(factor), static_cast<T*>(y), static_cast<const T*>(x), n);
    return cudaGetLastError();
  });
}

cudaError_t random_uniform(const RandomStream& stream, double low, double high, Scalar type, void* y, int64_t n,
                           cudaStream_t on) {
  return fill(stream, Uniform{low, high - low}, type, y, n, on);
}

cudaError_t random_normal(const RandomStream& stream, double mean, double deviation, Scalar type, void* y, int64_t n,
                          cudaStream_t on) {
  return fill(stream, Normal{mean, deviation}, type, y, n, on);
}

}  // namespace plimsoll::cuda
