#include "kernels/cuda/elementwise/random.h"

#include "kernels/cuda/common/philox.cuh"
#include "kernels/cuda/elementwise/elementwise_map.cuh"

#include <cmath>

// Serves dropout, random_uniform and random_normal. Numbers are made where they are used: x is read and y written
// once.

namespace plimsoll::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(block_threads)
    dropout_kernel(RandomStream stream, int64_t first_draw, uint32_t dropped, Compute<T> factor, T* y, const T* x,
                   int64_t n) {
  constexpr int length = sizeof(T) == 2 ? 8 : 4;
  const int64_t run = int64_t{blockIdx.x} * block_threads + threadIdx.x, at = run * length, left = n - at;
  if (left <= 0) return;
  const int count = left < length ? static_cast<int>(left) : length;
  Vector<T, length> values = load_run<length>(x + at, true, count);
  const Draws<length> draws(stream, first_draw + at);
#pragma unroll
  for (int k = 0; k < length; ++k) values.at[k] = narrow<T>(draws.keep(k, widen(values.at[k]), dropped, factor));
  store_run(y + at, values, count);
}

// A thread has n channels at `run` positions, whose numbers are neighbours. Blocks of Philox are made once for all of
// them where runs begin at blocks.
template <typename T, int n, int run>
__global__ void __launch_bounds__(block_threads)
    dropout_channels_last_kernel(RandomStream stream, int64_t first_draw, uint32_t dropped, Compute<T> factor, T* y,
                                 const T* x, ChannelsLastShape shape) {
  const int64_t index = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  const int64_t across = shape.channels / n, down = shape.positions / run;
  if (index >= shape.batch * across * down) return;
  const int64_t row = index / across, channel = (index - row * across) * n;
  const int64_t sample = row / down, position = (row - sample * down) * run;
  const int64_t start = (sample * shape.positions + position) * shape.channels + channel;
  Vector<T, n> values[run];
#pragma unroll
  for (int k = 0; k < run; ++k) values[k] = load_vector<n>(x + start + k * shape.channels);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const Draws<run> draws(stream, first_draw + (sample * shape.channels + channel + i) * shape.positions + position);
#pragma unroll
    for (int k = 0; k < run; ++k) values[k].at[i] = narrow<T>(draws.keep(k, widen(values[k].at[i]), dropped, factor));
  }
#pragma unroll
  for (int k = 0; k < run; ++k) store_vector(y + start + k * shape.channels, values[k]);
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

cudaError_t dropout(const RandomStream& stream, const ElementDropout& dropout, Scalar type, void* y, const void* x,
                    int64_t n, cudaStream_t on) {
  if (n == 0) return cudaSuccess;
  return with_float(type, [&]<typename T>(T*) {
    constexpr int length = sizeof(T) == 2 ? 8 : 4;
    dropout_kernel<<<blocks_for(n, int64_t{block_threads} * length), block_threads, 0, on>>>(
        stream, dropout.first_draw, dropout.dropped, static_cast<Compute<T>>(dropout.factor), static_cast<T*>(y),
        static_cast<const T*>(x), n);
  });
}

cudaError_t dropout_channels_last(const RandomStream& stream, const ElementDropout& dropout, Scalar type, void* y,
                                  const void* x, const ChannelsLastShape& shape, cudaStream_t on) {
  const int64_t elements = shape.batch * shape.positions * shape.channels;
  if (elements == 0) return cudaSuccess;
  return with_float(type, [&]<typename T>(T*) {
    const auto launch = [&](auto n, auto run) {
      dropout_channels_last_kernel<T, n, run><<<blocks_for(elements / (n * run)), block_threads, 0, on>>>(
          stream, dropout.first_draw, dropout.dropped, static_cast<Compute<T>>(dropout.factor), static_cast<T*>(y),
          static_cast<const T*>(x), shape);
    };
    constexpr int run = ElementDropout::elements_per_block, words = 16 / static_cast<int>(sizeof(T)),
                  n = words < 4 ? words : 4;
    using One = std::integral_constant<int, 1>;
    if (shape.positions % run == 0 && dropout.first_draw % run == 0 && shape.channels % n == 0)
      launch(std::integral_constant<int, n>(), std::integral_constant<int, run>());
    else
      launch(One(), One());
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
