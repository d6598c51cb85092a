#include "kernels/cuda/batch_norm.h"

#include "kernels/cuda/channel_tiles.cuh"

// With xhat = (x - mean) * rstd, dbias = sum(dy) and dscale = sum(dy * xhat) over a channel's `count` elements,
//   dx = rstd * scale * (dy - dbias / count - xhat * dscale / count).

namespace plimsoll::cuda {
namespace {

constexpr int block_threads = 256, in_flight = 2;

struct Sums {
  float dy, dy_xhat;
  __device__ Sums operator+(const Sums& other) const { return {dy + other.dy, dy_xhat + other.dy_xhat}; }
};

__device__ float reciprocal_deviation(const BatchNormGradCall& call, int64_t c) {
  return 1.0f / sqrtf(call.var[c] + call.eps);
}

template <typename T, int n>
__device__ Sums sums_of(const Vector<T, n>& x, const Vector<T, n>& dy, float mean, float rstd) {
  Sums sums{0, 0};
#pragma unroll
  for (int i = 0; i < n; ++i)
    sums = sums + Sums{widen(dy.at[i]), widen(dy.at[i]) * (widen(x.at[i]) - mean) * rstd};
  return sums;
}

// partials [gridDim.y, channels]; block x is a channel, block y a part of its accesses.
template <typename T, int n>
__global__ void __launch_bounds__(block_threads) plane_sums_kernel(Sums* partials, BatchNormGradCall call) {
  const ChannelShape& shape = call.shape;
  const T *x = static_cast<const T*>(call.x), *dy = static_cast<const T*>(call.dy);
  const float mean = call.mean[blockIdx.x], rstd = reciprocal_deviation(call, blockIdx.x);
  const auto a_plane = static_cast<uint32_t>(shape.inner / n);
  const auto accesses = static_cast<uint32_t>(shape.batch * (shape.inner / n));
  const uint32_t step = gridDim.y * block_threads;
  Sums total{0, 0};
#pragma unroll 4
  for (uint32_t at = blockIdx.y * block_threads + threadIdx.x; at < accesses; at += step) {
    const int64_t place =
        ((at / a_plane) * shape.channels + blockIdx.x) * shape.inner + int64_t{n} * (at % a_plane);
    total = total + sums_of(load_vector<n>(x + place), load_vector<n>(dy + place), mean, rstd);
  }
  total = block_reduce(total, Add(), Sums{0, 0});
  if (threadIdx.x == 0) partials[int64_t{blockIdx.y} * shape.channels + blockIdx.x] = total;
}

// The same for channels last; blocks as in ColumnTiles.
template <typename T, int n>
__global__ void __launch_bounds__(block_threads, resident_blocks)
    column_sums_kernel(Sums* partials, BatchNormGradCall call, int64_t rows, int64_t columns) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, channels = columns * n;
  const int64_t step = int64_t{gridDim.y} * blockDim.y;
  Sums totals[n] = {};
  if (column < columns) {
    float mean[n];
#pragma unroll
    for (int i = 0; i < n; ++i) mean[i] = call.mean[column * n + i];
    const T* x = static_cast<const T*>(call.x) + column * n;
    const T* dy = static_cast<const T*>(call.dy) + column * n;
    for (int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < rows; row += in_flight * step) {
      Vector<T, n> values[in_flight], grads[in_flight];
#pragma unroll
      for (int k = 0; k < in_flight; ++k) {
        if (row + k * step >= rows) break;
        values[k] = load_vector<n>(x + (row + k * step) * channels);
        grads[k] = load_vector<n>(dy + (row + k * step) * channels);
      }
#pragma unroll
      for (int k = 0; k < in_flight; ++k) {
        if (row + k * step >= rows) break;
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const float d = widen(grads[k].at[i]);
          totals[i] = totals[i] + Sums{d, d * (widen(values[k].at[i]) - mean[i])};
        }
      }
    }
#pragma unroll
    for (int i = 0; i < n; ++i) totals[i].dy_xhat *= reciprocal_deviation(call, column * n + i);
  }
  combine_down<block_threads>(totals, Add());
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int i = 0; i < n; ++i) partials[blockIdx.y * channels + column * n + i] = totals[i];
}

// dx = factor * (dy - average - (x - mean) * slope)
struct Coefficients {
  float *mean, *factor, *average, *slope;

  Coefficients(float* workspace, int64_t channels)
      : mean(workspace), factor(workspace + channels), average(workspace + 2 * channels),
        slope(workspace + 3 * channels) {}
};

__global__ void __launch_bounds__(merge_across* merge_down)
    add_sums_kernel(BatchNormGradCall call, const Sums* partials, int64_t parts, Coefficients coefficients) {
  const int64_t c = int64_t{blockIdx.x} * merge_across + threadIdx.x;
  const Sums total = combine_parts(partials, parts, call.shape.channels, c, Add(), Sums{0, 0});
  if (threadIdx.y != 0 || c >= call.shape.channels) return;
  const float count = static_cast<float>(call.shape.per_channel()), rstd = reciprocal_deviation(call, c);
  store_any(call.dscale, call.parameter_type, c, static_cast<double>(total.dy_xhat));
  store_any(call.dbias, call.parameter_type, c, static_cast<double>(total.dy));
  coefficients.mean[c] = call.mean[c];
  coefficients.factor[c] = rstd * load_any<float>(AnyTensor{call.scale, call.parameter_type}, c);
  coefficients.average[c] = total.dy / count;
  coefficients.slope[c] = rstd * (total.dy_xhat / count);
}

// Rows are counted from the last one.
template <typename T, int n, ChannelOrder order>
__global__ void __launch_bounds__(block_threads, resident_blocks)
    dx_kernel(T* dx, const T* x, const T* dy, ChannelMatrix matrix, Coefficients coefficients) {
  using Channels = ChannelsOf<order, n>;
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= matrix.columns) return;
  const Channels channels(matrix, column);
  float mean[Channels::count], factor[Channels::count], average[Channels::count], slope[Channels::count];
  channels.load(mean, coefficients.mean);
  channels.load(factor, coefficients.factor);
  channels.load(average, coefficients.average);
  channels.load(slope, coefficients.slope);
  const int64_t step = int64_t{gridDim.y} * blockDim.y, width = matrix.columns * n;
  const int64_t last = (matrix.rows - 1) * width + column * n;
  for (int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < matrix.rows; row += in_flight * step) {
    Vector<T, n> values[in_flight], grads[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      if (row + k * step >= matrix.rows) break;
      values[k] = load_vector<n>(x + last - (row + k * step) * width);
      grads[k] = load_vector<n>(dy + last - (row + k * step) * width);
    }
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      if (row + k * step >= matrix.rows) break;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const int c = i % Channels::count;
        const float centered = widen(values[k].at[i]) - mean[c];
        grads[k].at[i] = narrow<T>(factor[c] * (widen(grads[k].at[i]) - average[c] - centered * slope[c]));
      }
      store_vector(dx + last - (row + k * step) * width, grads[k]);
    }
  }
}

template <typename T, int n, ChannelOrder order>
void launch_passes(const BatchNormGradCall& call, cudaStream_t stream) {
  const int64_t channels = call.shape.channels, parts = channel_parts(call.shape, sizeof(T));
  auto* partials = reinterpret_cast<Sums*>(call.workspace);
  const Coefficients coefficients(call.workspace + 2 * parts * channels, channels);
  const ChannelMatrix matrix(call.shape, n);
  if constexpr (order == ChannelOrder::Last) {
    const TileGrid tiles(statistics_tiles(matrix.rows, matrix.columns));
    column_sums_kernel<T, n><<<tiles.grid, tiles.block, 0, stream>>>(partials, call, matrix.rows, matrix.columns);
  } else {
    const dim3 grid(static_cast<unsigned>(channels), static_cast<unsigned>(parts));
    plane_sums_kernel<T, n><<<grid, block_threads, 0, stream>>>(partials, call);
  }
  const auto blocks = static_cast<unsigned>(divide_up(channels, merge_across));
  const dim3 merging(merge_across, merge_down);
  add_sums_kernel<<<blocks, merging, 0, stream>>>(call, partials, parts, coefficients);
  const TileGrid tiles = last_pass_grid<order>(matrix);
  dx_kernel<T, n, order><<<tiles.grid, tiles.block, 0, stream>>>(static_cast<T*>(call.dx),
                                                                 static_cast<const T*>(call.x),
                                                                 static_cast<const T*>(call.dy), matrix, coefficients);
}

}  // namespace

cudaError_t batch_norm_grad(const BatchNormGradCall& call, cudaStream_t stream) {
  if (call.shape.per_channel() * call.shape.channels == 0) return cudaSuccess;
  return with_f32_math(call.x_type, [&](auto* x) {
    using T = std::remove_pointer_t<decltype(x)>;
    with_channel_layout<T>(call.shape, [&](auto n, auto order) { launch_passes<T, n(), order()>(call, stream); });
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
