#include "kernels/cuda/norm/batch_norm.h"

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/elementwise/formulas.cuh"
#include "kernels/cuda/norm/channel_tiles.cuh"

// Serves batch_norm_grad. x and dy are read twice and dx written once; dresidual is written once and read in place of
// dy. Let dz be what of dy goes back through the ReLU or SiLU behind the norm, or all of it where there is none, and
// xhat = (x - mean) * rstd. With dbias = sum(dz) and dscale = sum(dz * xhat) over a channel's `count` elements,
//   dx = rstd * scale * (dz - dbias / count - xhat * dscale / count).
// Without a residual both passes find dz from x and dy. With one, dz is also the residual's gradient: the first pass
// writes it, rounded, and the second reads it.

namespace plimsoll::cuda {
namespace {

struct Sums {
  float dz, dz_xhat;
  __device__ Sums operator+(const Sums& other) const { return {dz + other.dz, dz_xhat + other.dz_xhat}; }
};

__device__ float reciprocal_deviation(const BatchNormGradCall& call, int64_t c) {
  return 1.0f / sqrtf(call.var[c] + call.eps);
}

__device__ float load_parameter(const BatchNormGradCall& call, const void* values, int64_t c) {
  if (call.parameter_type == Scalar::F32) return static_cast<const float*>(values)[c];
  return load_any<float>(AnyTensor{values, call.parameter_type}, c);
}

// One channel's mean, and with an activation the factor and offset that turn x - mean into its operand, with the
// rounding of the forward pass.
struct Gate {
  float mean, factor, offset;

  __device__ void load(const BatchNormGradCall& call, int64_t c) {
    mean = call.mean[c];
    factor = call.bias ? reciprocal_deviation(call, c) * load_parameter(call, call.scale, c) : 0.0f;
    offset = call.bias ? load_parameter(call, call.bias, c) : 1.0f;
  }
};

// Where the first pass has dz from: x and dy, with a SiLU behind or not, or y and one or two dy.
enum class Source : uint8_t { Input, Silu, Output };

template <typename T, int n>
struct Loaded {
  Packed<T, n> x, dy, y, more_dy;
};

template <Source source, typename T, int n>
__device__ void load_at(Loaded<T, n>& loaded, const BatchNormGradCall& call, int64_t at) {
  loaded.x = load_packed<n>(static_cast<const T*>(call.x) + at);
  loaded.dy = load_packed<n>(static_cast<const T*>(call.dy) + at);
  if constexpr (source == Source::Output) {
    loaded.y = load_packed<n>(static_cast<const T*>(call.y) + at);
    if (call.more_dy) loaded.more_dy = load_packed<n>(static_cast<const T*>(call.more_dy) + at);
  }
}

// dz with Source::Output; it is rounded only where it is stored.
template <typename T, int n>
__device__ void store_dz(float (&dz)[n], const Loaded<T, n>& loaded, const BatchNormGradCall& call, int64_t at) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    dz[i] = loaded.dy[i];
    if (call.more_dy) dz[i] += loaded.more_dy[i];
    if (!(loaded.y[i] > 0.0f)) dz[i] = 0.0f;
  }
  store_packed(static_cast<T*>(call.dresidual) + at, pack<T>(dz));
}

// Adds an access to the sums of its channels, one each element or one for all; rstd is still to be multiplied in.
template <Source source, typename T, int n, int channels>
__device__ void add_access(Sums (&totals)[channels], const Loaded<T, n>& loaded, const Gate (&gates)[channels],
                           const BatchNormGradCall& call, int64_t at) {
  float dz[n];
  if constexpr (source == Source::Output) store_dz(dz, loaded, call, at);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if constexpr (source != Source::Output) dz[i] = loaded.dy[i];
    const Gate& gate = gates[i % channels];
    const float centered = loaded.x[i] - gate.mean;
    float passed = dz[i];
    if constexpr (source == Source::Silu) passed *= silu_slope(centered * gate.factor + gate.offset);
    if (source == Source::Input && call.bias && !(centered * gate.factor + gate.offset > 0.0f)) passed = 0.0f;
    totals[i % channels] = totals[i % channels] + Sums{passed, passed * centered};
  }
}

// partials [gridDim.y, channels]; block x is a channel, block y a part of its accesses.
template <typename T, int n, Source source>
__global__ void __launch_bounds__(block_threads) plane_sums_kernel(Sums* partials, BatchNormGradCall call) {
  const ChannelShape& shape = call.shape;
  const auto per_plane = static_cast<uint32_t>(shape.inner / n);
  const auto accesses = static_cast<uint32_t>(shape.batch * (shape.inner / n));
  const uint32_t step = gridDim.y * block_threads;
  Gate gate[1];
  gate[0].load(call, blockIdx.x);
  Sums total[1] = {};
#pragma unroll 4
  for (uint32_t at = blockIdx.y * block_threads + threadIdx.x; at < accesses; at += step) {
    const int64_t place =
        ((at / per_plane) * shape.channels + blockIdx.x) * shape.inner + int64_t{n} * (at % per_plane);
    Loaded<T, n> loaded;
    load_at<source>(loaded, call, place);
    add_access<source>(total, loaded, gate, call, place);
  }
  total[0].dz_xhat *= reciprocal_deviation(call, blockIdx.x);
  total[0] = block_reduce(total[0], Add(), Sums{0, 0});
  if (threadIdx.x == 0) partials[int64_t{blockIdx.y} * shape.channels + blockIdx.x] = total[0];
}

// The same for channels last; blocks as in ColumnTiles.
template <typename T, int n, Source source>
__global__ void __launch_bounds__(block_threads, resident_blocks)
    column_sums_kernel(Sums* partials, BatchNormGradCall call, uint32_t rows, int64_t columns) {
  constexpr int in_flight = source == Source::Output ? 4 : 8;
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, channels = columns * n;
  const uint32_t step = gridDim.y * blockDim.y;
  Sums totals[n] = {};
  if (column < columns) {
    Gate gates[n];
#pragma unroll
    for (int i = 0; i < n; ++i) gates[i].load(call, column * n + i);
    uint32_t row = blockIdx.y * blockDim.y + threadIdx.y;
    const int64_t down = step * channels;
    for (int64_t at = row * channels + column * n; row < rows; row += in_flight * step, at += in_flight * down) {
      Loaded<T, n> loaded[in_flight];
#pragma unroll
      for (int k = 0; k < in_flight; ++k)
        if (row + k * step < rows) load_at<source>(loaded[k], call, at + k * down);
#pragma unroll
      for (int k = 0; k < in_flight; ++k)
        if (row + k * step < rows) add_access<source>(totals, loaded[k], gates, call, at + k * down);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) totals[i].dz_xhat *= reciprocal_deviation(call, column * n + i);
  }
  combine_down<block_threads>(totals, Add());
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int i = 0; i < n; ++i) partials[blockIdx.y * channels + column * n + i] = totals[i];
}

// dx = factor * (dz - average - (x - mean) * slope); an activation, where there is one, saw (x - mean) * factor +
// offset.
struct Coefficients {
  float *mean, *factor, *average, *slope, *offset;

  Coefficients(float* workspace, int64_t channels)
      : mean(workspace),
        factor(mean + channels),
        average(factor + channels),
        slope(average + channels),
        offset(slope + channels) {}

  // `sums` are those of `count` elements, the second one with rstd multiplied in.
  __device__ void set(int64_t c, const Sums& sums, float count, const BatchNormGradCall& call) const {
    const float rstd = reciprocal_deviation(call, c);
    mean[c] = call.mean[c];
    factor[c] = rstd * load_parameter(call, call.scale, c);
    average[c] = sums.dz / count;
    slope[c] = rstd * (sums.dz_xhat / count);
    offset[c] = call.bias ? load_parameter(call, call.bias, c) : 0.0f;
  }
};

// Null sums: they are not wanted.
__global__ void __launch_bounds__(merge_across* merge_down)
    add_sums_kernel(BatchNormGradCall call, const Sums* partials, int64_t parts, float* sums,
                    Coefficients coefficients) {
  const int64_t c = int64_t{blockIdx.x} * merge_across + threadIdx.x, channels = call.shape.channels;
  const Sums total = combine_parts(partials, parts, channels, c, Add(), Sums{0, 0});
  if (threadIdx.y != 0 || c >= channels) return;
  store_any(call.dscale, call.parameter_type, c, static_cast<double>(total.dz_xhat));
  store_any(call.dbias, call.parameter_type, c, static_cast<double>(total.dz));
  if (sums) sums[c] = total.dz, sums[channels + c] = total.dz_xhat;
  coefficients.set(c, total, static_cast<float>(call.shape.per_channel()), call);
}

__global__ void given_sums_kernel(BatchNormGradCall call, const float* sums, float count, Coefficients coefficients) {
  const int64_t c = int64_t{blockIdx.x} * block_threads + threadIdx.x, channels = call.shape.channels;
  if (c < channels) coefficients.set(c, {sums[c], sums[channels + c]}, count, call);
}

// Rows are counted from the last one. Where `gated`, a ReLU's work is still to be done, and with `silu` a SiLU's.
template <typename T, int n, ChannelOrder order, bool silu>
__global__ void __launch_bounds__(block_threads, resident_blocks)
    dx_kernel(T* dx, const T* x, const T* dz, bool gated, ChannelMatrix matrix, Coefficients coefficients) {
  using Channels = ChannelsOf<order, n>;
  constexpr int in_flight = 6;
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= matrix.columns) return;
  const Channels channels(matrix, column);
  float mean[Channels::count], factor[Channels::count], average[Channels::count], slope[Channels::count],
      offset[Channels::count];
  channels.load(mean, coefficients.mean);
  channels.load(factor, coefficients.factor);
  channels.load(average, coefficients.average);
  channels.load(slope, coefficients.slope);
  channels.load(offset, coefficients.offset);
  const auto rows = static_cast<uint32_t>(matrix.rows);
  const uint32_t step = gridDim.y * blockDim.y;
  uint32_t row = blockIdx.y * blockDim.y + threadIdx.y;
  const int64_t width = matrix.columns * n, down = step * width;
  int64_t at = (matrix.rows - 1 - row) * width + column * n;
  for (; row < rows; row += in_flight * step, at -= in_flight * down) {
    Packed<T, n> values[in_flight], grads[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      if (row + k * step >= rows) break;
      values[k] = load_packed<n>(x + at - k * down);
      grads[k] = load_packed<n>(dz + at - k * down);
    }
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      if (row + k * step >= rows) break;
      float result[n];
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const int c = i % Channels::count;
        const float centered = values[k][i] - mean[c];
        float passed = grads[k][i];
        if constexpr (silu)
          passed *= silu_slope(centered * factor[c] + offset[c]);
        else if (gated && !(centered * factor[c] + offset[c] > 0.0f))
          passed = 0.0f;
        result[i] = factor[c] * (passed - average[c] - centered * slope[c]);
      }
      store_packed(dx + at - k * down, pack<T>(result));
    }
  }
}

bool has_silu(const BatchNormGradCall& call) { return call.bias && call.activation == NormActivation::Silu; }

template <typename T, int n, ChannelOrder order, Source source>
void launch_sums(const BatchNormGradCall& call, Sums* partials, int64_t parts, cudaStream_t stream) {
  const ChannelMatrix matrix(call.shape, n);
  const TileGrid launch = first_pass_grid<order>(matrix, parts);
  if constexpr (order == ChannelOrder::Last)
    column_sums_kernel<T, n, source>
        <<<launch.grid, launch.block, 0, stream>>>(partials, call, static_cast<uint32_t>(matrix.rows), matrix.columns);
  else
    plane_sums_kernel<T, n, source><<<launch.grid, launch.block, 0, stream>>>(partials, call);
}

// Makes the coefficients of the second pass too, behind the partial sums in the workspace.
template <typename T, int n, ChannelOrder order>
Coefficients launch_first_pass(const BatchNormGradCall& call, float* sums, cudaStream_t stream) {
  const int64_t channels = call.shape.channels;
  const int64_t parts = channel_parts(call.shape, sizeof(T), norm_grad_access_bytes);
  auto* partials = reinterpret_cast<Sums*>(call.workspace);
  const Coefficients coefficients(call.workspace + 2 * parts * channels, channels);
  if (call.y)
    launch_sums<T, n, order, Source::Output>(call, partials, parts, stream);
  else if (has_silu(call))
    launch_sums<T, n, order, Source::Silu>(call, partials, parts, stream);
  else
    launch_sums<T, n, order, Source::Input>(call, partials, parts, stream);
  const TileGrid merging = merge_grid(channels);
  add_sums_kernel<<<merging.grid, merging.block, 0, stream>>>(call, partials, parts, sums, coefficients);
  return coefficients;
}

template <typename T, int n, ChannelOrder order>
void launch_second_pass(const BatchNormGradCall& call, const Coefficients& coefficients, cudaStream_t stream) {
  const ChannelMatrix matrix(call.shape, n);
  const TileGrid tiles = last_pass_grid<order>(matrix);
  const auto start = [&](auto kernel) {
    kernel<<<tiles.grid, tiles.block, 0, stream>>>(static_cast<T*>(call.dx), static_cast<const T*>(call.x),
                                                   static_cast<const T*>(call.y ? call.dresidual : call.dy),
                                                   call.bias != nullptr, matrix, coefficients);
  };
  if (has_silu(call))
    start(dx_kernel<T, n, order, true>);
  else
    start(dx_kernel<T, n, order, false>);
}

bool is_empty(const ChannelShape& shape) { return shape.per_channel() * shape.channels == 0; }

}  // namespace

cudaError_t batch_norm_grad(const BatchNormGradCall& call, cudaStream_t stream) {
  if (is_empty(call.shape)) return cudaSuccess;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    with_channel_layout<T, norm_grad_access_bytes>(call.shape, [&](auto n, auto order) {
      launch_second_pass<T, n(), order()>(call, launch_first_pass<T, n(), order()>(call, nullptr, stream), stream);
    });
  });
}

cudaError_t batch_norm_sums(const BatchNormGradCall& call, float* sums, cudaStream_t stream) {
  if (is_empty(call.shape)) return cudaSuccess;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    with_channel_layout<T, norm_grad_access_bytes>(
        call.shape, [&](auto n, auto order) { launch_first_pass<T, n(), order()>(call, sums, stream); });
  });
}

cudaError_t batch_norm_dx(const BatchNormGradCall& call, const float* sums, float count, cudaStream_t stream) {
  if (is_empty(call.shape)) return cudaSuccess;
  const Coefficients coefficients(call.workspace, call.shape.channels);
  given_sums_kernel<<<blocks_for(call.shape.channels), block_threads, 0, stream>>>(call, sums, count, coefficients);
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    with_channel_layout<T, norm_grad_access_bytes>(
        call.shape, [&](auto n, auto order) { launch_second_pass<T, n(), order()>(call, coefficients, stream); });
  });
}

}  // namespace plimsoll::cuda
