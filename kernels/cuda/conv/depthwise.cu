#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/conv/sum_parts.h"

// Depthwise conv, conv_dx and conv_dw with any strides, dilations and pads, in f32 too. Threads read x, dy and the
// weights through the L1 cache, several times each: a pixel is asked for by each tap that meets it, while memory gives
// it once.

namespace plimsoll::cuda {
namespace {

constexpr int strip = 4;  // pixels of a thread, side by side in their class

struct Depthwise {
  TapAxes axes;
  int64_t batch;
  int channels, vectors, kernel[2], out[2];
  int channel_threads, channel_blocks, strips[2];  // strips: lines and strips of a line, of the largest class
};

// Threads go over `channel_threads` vectors of channels and strips of pixels. Weights lie in shared memory in f32, as
// [tap][channel] of the block's channels.
template <typename T, int length, bool gradient>
__global__ void __launch_bounds__(block_threads, 2)
    depthwise_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w, const T* __restrict__ bias,
                     int64_t strips, const __grid_constant__ Depthwise d) {
  extern __shared__ float weights[];
  const int block_channels = d.channel_threads * length, taps = d.kernel[0] * d.kernel[1];
  const int channel_block = static_cast<int>(blockIdx.x) % d.channel_blocks, first = channel_block * block_channels;
  for (int i = static_cast<int>(threadIdx.x); i < taps * block_channels; i += block_threads) {
    const int channel = i % block_channels, tap = i / block_channels;
    weights[i] = first + channel < d.channels ? widen(w[int64_t{first + channel} * taps + tap]) : 0.0f;
  }
  __syncthreads();
  const int across = static_cast<int>(threadIdx.x) % d.channel_threads, channel = first + across * length;
  if (channel >= d.channels) return;
  const int down_threads = block_threads / d.channel_threads;
  const int64_t step = int64_t{gridDim.x} / d.channel_blocks * down_threads;
  for (int64_t item =
           int64_t{blockIdx.x} / d.channel_blocks * down_threads + static_cast<int>(threadIdx.x) / d.channel_threads;
       item < strips; item += step) {
    int64_t rest = item;
    const auto take = [&](int count) {
      const int64_t of = rest / count;
      const auto index = static_cast<int>(rest - of * count);
      rest = of;
      return index;
    };
    const int q_x = take(d.strips[1]) * strip;
    const TapAxis& x_axis = d.axes.at[1][take(d.axes.classes[1])];
    const int q_y = take(d.strips[0]);
    const TapAxis& y_axis = d.axes.at[0][take(d.axes.classes[0])];
    if (q_y >= y_axis.out_pixels || q_x >= x_axis.out_pixels) continue;
    const T* image = in + rest * y_axis.in_pixels * x_axis.in_pixels * d.channels + channel;
    float sums[strip][length] = {};
    for (int j_y = 0; j_y < y_axis.taps; ++j_y) {
      const int y = q_y * y_axis.in_stride + y_axis.first + j_y * y_axis.step;
      if (y < 0 || y >= y_axis.in_pixels) continue;
      const T* line = image + int64_t{y} * x_axis.in_pixels * d.channels;
      const int tap_row = (y_axis.tap_first + j_y * y_axis.tap_step) * d.kernel[1] + x_axis.tap_first;
      for (int j_x = 0; j_x < x_axis.taps; ++j_x) {
        const float* of_tap = weights + (tap_row + j_x * x_axis.tap_step) * block_channels + across * length;
        const int first_x = q_x * x_axis.in_stride + x_axis.first + j_x * x_axis.step;
#pragma unroll
        for (int i = 0; i < strip; ++i) {
          const int x = first_x + i * x_axis.in_stride;
          if (x < 0 || x >= x_axis.in_pixels) continue;
          const Packed<T, length> pixel = load_packed<length>(line + int64_t{x} * d.channels);
#pragma unroll
          for (int k = 0; k < length; ++k) sums[i][k] += pixel[k] * of_tap[k];
        }
      }
    }
    if (bias)
#pragma unroll
      for (int k = 0; k < length; ++k) {
        const float added = widen(bias[channel + k]);
#pragma unroll
        for (int i = 0; i < strip; ++i) sums[i][k] += added;
      }
    const int64_t out_y = rest * d.out[0] + int64_t{q_y} * y_axis.out_step + y_axis.out_first;
#pragma unroll
    for (int i = 0; i < strip; ++i) {
      if (q_x + i >= x_axis.out_pixels) continue;
      const int64_t at = out_y * d.out[1] + int64_t{q_x + i} * x_axis.out_step + x_axis.out_first;
      store_packed(out + at * d.channels + channel, pack<T, length>(sums[i]));
    }
  }
}

// A thread has a vector of channels, up to held_taps taps of one row of the kernel, and every pixel_threads-th pixel of
// its lines; the pixels' sums meet in shared memory, in their order.
template <typename T, int length>
__global__ void __launch_bounds__(DepthwiseRows::threads, 2)
    depthwise_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                        const __grid_constant__ ConvolutionSizes c, const __grid_constant__ DepthwiseRows r) {
  constexpr int held = DepthwiseRows::held_taps;
  __shared__ float shared[DepthwiseRows::threads * length];
  unsigned rest = blockIdx.x;
  const auto take = [&](int count) {
    const unsigned of = rest / static_cast<unsigned>(count), index = rest - of * static_cast<unsigned>(count);
    rest = of;
    return static_cast<int>(index);
  };
  const int channel_block = take(r.channel_blocks), tap_block = take(r.tap_blocks);
  const int64_t split = rest;
  const int thread = static_cast<int>(threadIdx.x), across = thread % r.channel_threads;
  const int of_block = thread / r.channel_threads, block_row = of_block / r.pixel_threads,
            pixel_thread = of_block - block_row * r.pixel_threads;
  const int channel = (channel_block * r.channel_threads + across) * length;
  const int tap_row = tap_block * r.block_tap_rows + block_row;
  const bool works = block_row < r.block_tap_rows && tap_row < r.tap_rows && channel < c.groups;
  const int tap_y = tap_row / r.tap_columns, tap_x = tap_row % r.tap_columns * held;
  const int taps = min(held, c.kernel[1] - tap_x);

  float sums[held][length] = {};
  for (int64_t line = split; works && line < r.lines; line += r.splits) {
    const int64_t image = line / c.y[0];
    const int y = static_cast<int>(line - image * c.y[0]) * c.stride[0] + tap_y * c.dilation[0] - c.pad[0];
    if (y < 0 || y >= c.x[0]) continue;
    const T* of_dy = dy + line * c.y[1] * c.groups + channel;
    const T* of_x = x + (image * c.x[0] + y) * c.x[1] * c.groups + channel;
    for (int pixel = pixel_thread; pixel < c.y[1]; pixel += r.pixel_threads) {
      const Packed<T, length> given = load_packed<length>(of_dy + int64_t{pixel} * c.groups);
      const int first = pixel * c.stride[1] + tap_x * c.dilation[1] - c.pad[1];
#pragma unroll
      for (int tap = 0; tap < held; ++tap) {
        const int at = first + tap * c.dilation[1];
        if (tap >= taps || at < 0 || at >= c.x[1]) continue;
        const Packed<T, length> read = load_packed<length>(of_x + int64_t{at} * c.groups);
#pragma unroll
        for (int k = 0; k < length; ++k) sums[tap][k] += read[k] * given[k];
      }
    }
  }
  const int64_t first_weight = (split * c.groups + channel) * c.taps() + int64_t{tap_y} * c.kernel[1] + tap_x;
#pragma unroll
  for (int tap = 0; tap < held; ++tap) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < length; ++k) shared[k * DepthwiseRows::threads + thread] = sums[tap][k];
    __syncthreads();
    if (!works || pixel_thread != 0 || tap >= taps) continue;
#pragma unroll
    for (int k = 0; k < length; ++k) {
      float total = 0;
      for (int i = 0; i < r.pixel_threads; ++i)
        total += shared[k * DepthwiseRows::threads + thread + i * r.channel_threads];
      partial[first_weight + int64_t{k} * c.taps() + tap] = total;
    }
  }
}

template <bool gradient>
cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias, const ConvolutionSizes& c,
                   cudaStream_t stream) {
  Depthwise d{
      gradient ? gradient_axes(c) : forward_axes(c), c.batch, c.groups, 0, {c.kernel[0], c.kernel[1]}, {}, 0, 0, {}};
  for (int i = 0; i < 2; ++i) d.out[i] = gradient ? c.x[i] : c.y[i];
  d.strips[0] = d.axes.at[0][0].out_pixels;
  d.strips[1] = static_cast<int>(divide_up(d.axes.at[1][0].out_pixels, strip));
  const int64_t strips = c.batch * d.strips[0] * d.strips[1] * d.axes.classes[0] * d.axes.classes[1];
  if (strips == 0) return cudaSuccess;
  return with_f32_math(type, [&]<typename T>(T*) {
    const auto run = [&](auto vector) {
      constexpr int length = decltype(vector)::value;
      d.vectors = c.groups / length;
      // As many channels as their weights fit shared memory, and 128 bytes of a pixel where they do.
      d.channel_threads = static_cast<int>(128 / sizeof(T)) / length;
      while (d.channel_threads > 1 && d.channel_threads * length * c.taps() > max_depthwise_weights)
        d.channel_threads /= 2;
      d.channel_blocks = static_cast<int>(divide_up(d.vectors, d.channel_threads));
      const int64_t down_threads = block_threads / d.channel_threads;
      const int64_t down_blocks =
          std::min(divide_up(strips, down_threads), std::max<int64_t>(1, 8448 / d.channel_blocks));
      const size_t bytes = static_cast<size_t>(d.channel_threads) * length * c.taps() * sizeof(float);
      depthwise_kernel<T, length, gradient>
          <<<static_cast<unsigned>(down_blocks * d.channel_blocks), block_threads, bytes, stream>>>(
              static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w), static_cast<const T*>(bias),
              strips, d);
      return cudaGetLastError();
    };
    constexpr int most = 16 / sizeof(T);
    if (c.groups % most == 0) return run(std::integral_constant<int, most>());
    return run(std::integral_constant<int, 1>());
  });
}

}  // namespace

cudaError_t depthwise(Scalar type, void* y, const void* x, const void* w, const void* bias,
                      const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch<false>(type, y, x, w, bias, sizes, stream);
}

cudaError_t depthwise_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                         cudaStream_t stream) {
  return launch<true>(type, dx, dy, w, nullptr, sizes, stream);
}

cudaError_t depthwise_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy, const ConvolutionSizes& sizes,
                         void* workspace, cudaStream_t stream) {
  auto* partial = static_cast<float*>(workspace);
  return with_f32_math(type, [&]<typename T>(T*) {
    const DepthwiseRows rows(sizes, sizeof(T));
    const auto run = [&](auto vector) {
      constexpr int length = decltype(vector)::value;
      const auto blocks = static_cast<unsigned>(rows.splits * rows.tap_blocks * rows.channel_blocks);
      depthwise_dw_kernel<T, length><<<blocks, DepthwiseRows::threads, 0, stream>>>(
          partial, static_cast<const T*>(x), static_cast<const T*>(dy), sizes, rows);
    };
    constexpr int most = 16 / sizeof(T);
    if (rows.length == most)
      run(std::integral_constant<int, most>());
    else
      run(std::integral_constant<int, 1>());
    if (const cudaError_t error = cudaGetLastError()) return error;
    return sum_parts(to, dw, partial, rows.splits, sizes.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
