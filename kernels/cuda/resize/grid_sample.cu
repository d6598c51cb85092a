#include "kernels/cuda/resize/grid_sample.h"

#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/resize/grid_place.cuh"

// Samples and the gradient of their places. What neighbouring samples read again of an image comes from the caches; y
// is written once, and so is dgrid, for which dy is read once.

namespace plimsoll::cuda {
namespace {

// A thread has a run of a sample's channels.
template <int n, typename T>
__global__ void __launch_bounds__(block_threads)
    sample_kernel(T* y, const T* __restrict__ x, const __grid_constant__ SampledPlaces places, Divider units,
                  Divider samples, int64_t count, int channels) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= count) return;
  int64_t unit = i;
  const int64_t sample = units.divide(unit);
  int64_t in_image = sample;
  const int64_t image = samples.divide(in_image);
  const float2 at = places.coordinates(sample);
  const PixelPair column = places.columns(at.x), row = places.rows(at.y);
  const int width = places.columns.size, height = places.rows.size;
  const int taps = places.rows.mode == SampledAs::Nearest ? 1 : 2;
  const T* first = x + image * height * width * channels + unit * n;
  float sums[n] = {};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int down = row.first + j;
    if (j >= taps || down < 0 || down >= height) continue;
    const float of_row = j == 0 ? 1 - row.share : row.share;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int across = column.first + k;
      if (k >= taps || across < 0 || across >= width) continue;
      const float weight = of_row * (k == 0 ? 1 - column.share : column.share);
      const auto pixel = load_packed<n>(first + (int64_t{down} * width + across) * channels);
#pragma unroll
      for (int c = 0; c < n; ++c) sums[c] += weight * pixel[c];
    }
  }
  store_packed(y + i * n, pack<T>(sums));
}

// `team` lanes, a power of two, have a sample.
template <int n, typename T, typename G>
__global__ void __launch_bounds__(block_threads)
    slopes_kernel(G* dgrid, const T* __restrict__ x, const T* __restrict__ dy,
                  const __grid_constant__ SampledPlaces places, Divider samples, int64_t count, int channels,
                  int team) {
  const int64_t thread = int64_t{blockIdx.x} * block_threads + threadIdx.x, sample = thread / team;
  const int lane = static_cast<int>(thread % team);
  float by_column = 0, by_row = 0;
  if (sample < count) {
    int64_t in_image = sample;
    const int64_t image = samples.divide(in_image);
    const float2 at = places.coordinates(sample);
    const PixelPair column = places.columns(at.x), row = places.rows(at.y);
    const int width = places.columns.size, height = places.rows.size;
    const T* first = x + image * height * width * channels;
    for (int c = lane * n; c < channels; c += team * n) {
      const auto gradient = load_packed<n>(dy + sample * channels + c);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int down = row.first + j;
        if (down < 0 || down >= height) continue;
        const float of_row = j == 0 ? 1 - row.share : row.share, row_slope = j == 0 ? -row.slope : row.slope;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int across = column.first + k;
          if (across < 0 || across >= width) continue;
          const auto pixel = load_packed<n>(first + (int64_t{down} * width + across) * channels + c);
          float product = 0;
#pragma unroll
          for (int e = 0; e < n; ++e) product += pixel[e] * gradient[e];
          by_column += product * of_row * (k == 0 ? -column.slope : column.slope);
          by_row += product * row_slope * (k == 0 ? 1 - column.share : column.share);
        }
      }
    }
  }
  for (int distance = 1; distance < team; distance *= 2) {
    by_column += __shfl_xor_sync(whole_warp, by_column, distance);
    by_row += __shfl_xor_sync(whole_warp, by_row, distance);
  }
  if (lane != 0 || sample >= count) return;
  const Vector<G, 2> slopes{{narrow<G>(by_column), narrow<G>(by_row)}};
  store_vector(dgrid + 2 * sample, slopes);
}

int team_of(int64_t units) {
  int team = 1;
  while (team < units && team < warp_threads) team *= 2;
  return team;
}

}  // namespace

cudaError_t grid_sample(const GridSamples& shape, Scalar type, void* y, const void* x, const void* grid,
                        cudaStream_t stream) {
  if (shape.images * shape.samples * shape.channels == 0) return cudaSuccess;
  return with_channel_runs(type, shape.channels, [&]<typename T, int n>(T*, std::integral_constant<int, n>*) {
    const int64_t units = shape.channels / n, count = shape.images * shape.samples * units;
    sample_kernel<n><<<blocks_for(count), block_threads, 0, stream>>>(
        static_cast<T*>(y), static_cast<const T*>(x), SampledPlaces(shape, grid), Divider(units),
        Divider(shape.samples), count, static_cast<int>(shape.channels));
  });
}

cudaError_t grid_sample_dgrid(const GridSamples& shape, Scalar type, void* dgrid, const void* x, const void* grid,
                              const void* dy, cudaStream_t stream) {
  const int64_t count = shape.images * shape.samples;
  if (count == 0) return cudaSuccess;
  const auto run = [&]<typename G>(G*) {
    return with_channel_runs(type, shape.channels, [&]<typename T, int n>(T*, std::integral_constant<int, n>*) {
      const int team = team_of(shape.channels / n);
      slopes_kernel<n><<<blocks_for(count * team), block_threads, 0, stream>>>(
          static_cast<G*>(dgrid), static_cast<const T*>(x), static_cast<const T*>(dy), SampledPlaces(shape, grid),
          Divider(shape.samples), count, static_cast<int>(shape.channels), team);
    });
  };
  return with_f32_math(shape.grid_type, run);
}

}  // namespace plimsoll::cuda
