#include "kernels/cuda/norm/batch_norm.h"

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/elementwise/formulas.cuh"
#include "kernels/cuda/norm/channel_tiles.cuh"
#include "kernels/cuda/norm/moments.cuh"

#include <cmath>

// Serves batch_norm and batch_norm_inference, x [batch, channels, inner] or [batch, inner, channels]. x is read twice,
// once with given statistics, and y written once. Statistics of a few elements, or of a thread's, merge in a fixed
// order.

namespace plimsoll::cuda {
namespace {

constexpr int in_flight = 4, moments_in_flight = 8;

template <int count>
__device__ Moments moments_of(const float (&values)[count]) {
  float sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < count; ++i) sum += values[i];
  const float mean = sum * (1.0f / count);
#pragma unroll
  for (int i = 0; i < count; ++i) squares += (values[i] - mean) * (values[i] - mean);
  return {static_cast<float>(count), mean, squares};
}

// partials [gridDim.y, channels]; block x is a channel, block y a part of its accesses.
template <typename T, int n>
__global__ void __launch_bounds__(block_threads)
    plane_moments_kernel(Moments* partials, const T* x, ChannelShape shape) {
  const auto per_plane = static_cast<uint32_t>(shape.inner / n);
  const auto accesses = static_cast<uint32_t>(shape.batch * (shape.inner / n));
  auto place = [&](uint32_t access) {
    return x + ((access / per_plane) * shape.channels + blockIdx.x) * shape.inner + int64_t{n} * (access % per_plane);
  };
  const uint32_t step = gridDim.y * block_threads;
  uint32_t at = blockIdx.y * block_threads + threadIdx.x;
  Moments total{0, 0, 0};
  for (; at + uint64_t{in_flight - 1} * step < accesses; at += in_flight * step) {
    Vector<T, n> loaded[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) loaded[k] = load_vector<n>(place(at + k * step));
    float values[in_flight * n];
#pragma unroll
    for (int i = 0; i < in_flight * n; ++i) values[i] = widen(loaded[i / n].at[i % n]);
    total = Merge()(total, moments_of(values));
  }
  for (; at < accesses; at += step) {
    const Vector<T, n> loaded = load_vector<n>(place(at));
    float values[n];
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] = widen(loaded.at[i]);
    total = Merge()(total, moments_of(values));
  }
  total = block_reduce(total, Merge(), Moments{0, 0, 0});
  if (threadIdx.x == 0) partials[int64_t{blockIdx.y} * shape.channels + blockIdx.x] = total;
}

// The same for channels last; blocks as in ColumnTiles. A thread's pivots are the first elements it meets.
template <typename T, int n>
__global__ void __launch_bounds__(block_threads, resident_blocks)
    column_moments_kernel(Moments* partials, const T* x, uint32_t rows, int64_t columns) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, channels = columns * n;
  const uint32_t first = blockIdx.y * blockDim.y + threadIdx.y, step = gridDim.y * blockDim.y;
  Moments totals[n] = {};
  if (column < columns && first < rows) {
    const T* from = x + first * channels + column * n;
    PivotSums sums[n];
    for (uint32_t row = first; row < rows; row += moments_in_flight * step) {
      Packed<T, n> loaded[moments_in_flight];
#pragma unroll
      for (int k = 0; k < moments_in_flight; ++k, from += step * channels)
        if (row + k * step < rows) loaded[k] = load_packed<n>(from);
      if (row == first)
#pragma unroll
        for (int i = 0; i < n; ++i) sums[i].pivot = loaded[0][i];
#pragma unroll
      for (int k = 0; k < moments_in_flight; ++k) {
        if (row + k * step >= rows) break;
#pragma unroll
        for (int i = 0; i < n; ++i) sums[i].add(loaded[k][i]);
      }
    }
    const float count = static_cast<float>((rows - first + step - 1) / step);
#pragma unroll
    for (int i = 0; i < n; ++i) totals[i] = sums[i].moments(count);
  }
  combine_down<block_threads>(totals, Merge());
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int i = 0; i < n; ++i) partials[blockIdx.y * channels + column * n + i] = totals[i];
}

// The second pass multiplies and adds these: y = (x - mean) * factor + offset.
struct Coefficients {
  float *mean, *factor, *offset;

  Coefficients(float* workspace, int64_t channels)
      : mean(workspace), factor(workspace + channels), offset(workspace + 2 * channels) {}

  __device__ void set(int64_t c, float channel_mean, float var, const BatchNormCall& call) const {
    const float rstd = 1.0f / sqrtf(var + call.eps);
    mean[c] = channel_mean;
    factor[c] = call.scale ? rstd * load_any<float>(AnyTensor{call.scale, call.parameter_type}, c) : rstd;
    offset[c] = call.bias ? load_any<float>(AnyTensor{call.bias, call.parameter_type}, c) : 0.0f;
  }
};

__global__ void __launch_bounds__(merge_across* merge_down)
    merge_moments_kernel(BatchNormCall call, const Moments* partials, int64_t parts, float* mean, float* var,
                         Coefficients coefficients) {
  const int64_t c = int64_t{blockIdx.x} * merge_across + threadIdx.x;
  const Moments total = combine_parts(partials, parts, call.shape.channels, c, Merge(), Moments{0, 0, 0});
  if (threadIdx.y != 0 || c >= call.shape.channels) return;
  const float channel_var = total.squares / total.count;
  mean[c] = total.mean;
  var[c] = channel_var;
  coefficients.set(c, total.mean, channel_var, call);
}

__global__ void given_moments_kernel(BatchNormCall call, AnyTensor mean, AnyTensor var, Coefficients coefficients) {
  const int64_t c = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (c < call.shape.channels) coefficients.set(c, load_any<float>(mean, c), load_any<float>(var, c), call);
}

// The second term of a variance is that of the parts' means, which are as far apart as the data are.
__global__ void merge_ranks_kernel(float* mean, float* var, const float* moments, int64_t ranks, int64_t channels) {
  const int64_t c = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (c >= channels) return;
  const float share = 1.0f / static_cast<float>(ranks);
  float middle = 0, squares = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) middle += moments[2 * rank * channels + c] * share;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float away = moments[2 * rank * channels + c] - middle;
    squares += (moments[(2 * rank + 1) * channels + c] + away * away) * share;
  }
  mean[c] = middle;
  var[c] = squares;
}

// y may be x, or the residual, which may be null. Rows are counted from the last one.
template <typename T, int n, ChannelOrder order, bool silu>
__global__ void __launch_bounds__(block_threads, resident_blocks)
    normalise_kernel(T* y, const T* x, const T* residual, float lowest, ChannelMatrix matrix,
                     Coefficients coefficients) {
  using Channels = ChannelsOf<order, n>;
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= matrix.columns) return;
  const Channels channels(matrix, column);
  float mean[Channels::count], factor[Channels::count], offset[Channels::count];
  channels.load(mean, coefficients.mean);
  channels.load(factor, coefficients.factor);
  channels.load(offset, coefficients.offset);
  const auto rows = static_cast<uint32_t>(matrix.rows);
  const uint32_t step = gridDim.y * blockDim.y;
  uint32_t row = blockIdx.y * blockDim.y + threadIdx.y;
  const int64_t width = matrix.columns * n, down = step * width;
  int64_t at = (matrix.rows - 1 - row) * width + column * n;
  for (; row < rows; row += in_flight * step, at -= in_flight * down) {
    Packed<T, n> values[in_flight], added[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      if (row + k * step >= rows) break;
      values[k] = load_packed<n>(x + at - k * down);
      if (residual) added[k] = load_packed<n>(residual + at - k * down);
    }
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      if (row + k * step >= rows) break;
      float result[n];
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const int c = i % Channels::count;
        result[i] = (values[k][i] - mean[c]) * factor[c] + offset[c];
        if (residual) result[i] += added[k][i];
        if (silu)
          result[i] *= sigmoid(result[i]);
        else if (result[i] < lowest)
          result[i] = lowest;
      }
      store_packed(y + at - k * down, pack<T>(result));
    }
  }
}

template <typename T, int n, ChannelOrder order>
void launch_moments(const BatchNormCall& call, Moments* partials, int64_t parts, cudaStream_t stream) {
  const T* x = static_cast<const T*>(call.x);
  const ChannelMatrix matrix(call.shape, n);
  const TileGrid launch = first_pass_grid<order>(matrix, parts);
  if constexpr (order == ChannelOrder::Last)
    column_moments_kernel<T, n>
        <<<launch.grid, launch.block, 0, stream>>>(partials, x, static_cast<uint32_t>(matrix.rows), matrix.columns);
  else
    plane_moments_kernel<T, n><<<launch.grid, launch.block, 0, stream>>>(partials, x, call.shape);
}

template <typename T, int n, ChannelOrder order>
void launch_normalise(const BatchNormCall& call, const Coefficients& coefficients, cudaStream_t stream) {
  const ChannelMatrix matrix(call.shape, n);
  const TileGrid launch = last_pass_grid<order>(matrix);
  const auto start = [&](auto kernel) {
    kernel<<<launch.grid, launch.block, 0, stream>>>(
        static_cast<T*>(call.y), static_cast<const T*>(call.x), static_cast<const T*>(call.residual),
        call.activation == NormActivation::Relu ? 0.0f : -INFINITY, matrix, coefficients);
  };
  if (call.activation == NormActivation::Silu)
    start(normalise_kernel<T, n, order, true>);
  else
    start(normalise_kernel<T, n, order, false>);
}

bool is_empty(const ChannelShape& shape) { return shape.per_channel() * shape.channels == 0; }

enum class Work : uint8_t { Moments, All };

cudaError_t run(const BatchNormCall& call, float* mean, float* var, Work work, cudaStream_t stream) {
  if (is_empty(call.shape)) return cudaSuccess;
  const int64_t channels = call.shape.channels;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    const int64_t parts = channel_parts(call.shape, sizeof(T), norm_access_bytes);
    auto* partials = reinterpret_cast<Moments*>(call.workspace);
    const Coefficients coefficients(call.workspace + 3 * parts * channels, channels);
    const TileGrid merging = merge_grid(channels);
    with_channel_layout<T, norm_access_bytes>(call.shape, [&](auto n, auto order) {
      launch_moments<T, n(), order()>(call, partials, parts, stream);
      merge_moments_kernel<<<merging.grid, merging.block, 0, stream>>>(call, partials, parts, mean, var, coefficients);
      if (work == Work::All) launch_normalise<T, n(), order()>(call, coefficients, stream);
    });
  });
}

}  // namespace

cudaError_t batch_norm(const BatchNormCall& call, float* mean, float* var, cudaStream_t stream) {
  return run(call, mean, var, Work::All, stream);
}

cudaError_t batch_moments(const BatchNormCall& call, float* mean, float* var, cudaStream_t stream) {
  return run(call, mean, var, Work::Moments, stream);
}

cudaError_t merge_moments(float* mean, float* var, const float* moments, int64_t ranks, int64_t channels,
                          cudaStream_t stream) {
  if (channels == 0) return cudaSuccess;
  merge_ranks_kernel<<<blocks_for(channels), block_threads, 0, stream>>>(mean, var, moments, ranks, channels);
  return cudaGetLastError();
}

cudaError_t batch_norm_inference(const BatchNormCall& call, const void* mean, const void* var, Scalar mean_type,
                                 Scalar var_type, cudaStream_t stream) {
  if (is_empty(call.shape)) return cudaSuccess;
  const Coefficients coefficients(call.workspace, call.shape.channels);
  given_moments_kernel<<<blocks_for(call.shape.channels), block_threads, 0, stream>>>(call, {mean, mean_type},
                                                                                      {var, var_type}, coefficients);
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    with_channel_layout<T, norm_access_bytes>(
        call.shape, [&](auto n, auto order) { launch_normalise<T, n(), order()>(call, coefficients, stream); });
  });
}

}  // namespace plimsoll::cuda
