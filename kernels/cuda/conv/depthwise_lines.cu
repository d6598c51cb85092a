#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/common/byte_steps.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/conv/depthwise_lines.cuh"

// Depthwise conv and conv_dx without strides, by any rectangle of taps. Neighbouring threads have neighbouring
// channels, and the pixels or strips beside them. For each piece of taps a thread loads the pixels under its strip
// once; memory gives them once, and the L1 cache to other pieces and strips.

namespace plimsoll::cuda {
namespace {

constexpr int strip = DepthwiseLines::strip;

struct Strips {
  DepthwiseLines plan;
  int channels;
  bool turned;              // the last tap comes first
  Divider32 held_taps;      // of a channel, zeros and all
  Divider32 held_of_line;   // of these
  Divider32 inner, middle;  // strips and lines, the one whose pixels are neighbours in memory first
};

// Weights of a block's channels in shared memory as [tap][channel], in f32 and in the order in which they meet pixels.
template <typename T>
__device__ void stage_weights(float* weights, const T* w, const Strips& s, int first_channel) {
  const DepthwiseLines& p = s.plan;
  const LineSteps<int> tap_steps(p.along, p.taps[1], 1);
  const int taps = p.taps[0] * p.taps[1];
  const int count = min(p.block_channels(), s.channels - first_channel) * p.tap_rows * p.held;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += DepthwiseLines::threads) {
    int32_t held_tap = i;
    const int channel = s.held_taps.divide(held_tap);
    int32_t tap = held_tap;
    const int line = s.held_of_line.divide(tap), number = line * tap_steps.beside + tap * tap_steps.along;
    const T* of_channel = w + int64_t{first_channel + channel} * taps;
    weights[held_tap * p.weight_pitch() + channel] =
        tap < p.taps[p.along] ? widen(of_channel[s.turned ? taps - 1 - number : number]) : 0.0f;
  }
  __syncthreads();
}

template <typename T, int length, int held>
__global__ void __launch_bounds__(DepthwiseLines::threads, 5)
    lines_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w, const T* __restrict__ bias,
                 const __grid_constant__ Strips s) {
  extern __shared__ float4 words[];
  const DepthwiseLines& p = s.plan;
  float* const weights = reinterpret_cast<float*>(words);
  const int vector_block = static_cast<int>(blockIdx.x) % p.vector_blocks, thread = static_cast<int>(threadIdx.x);
  const int of_block = thread / p.vector_threads, across = thread - of_block * p.vector_threads;
  const int vector = vector_block * p.vector_threads + across, channel = vector * length;
  stage_weights(weights, w, s, vector_block * p.block_channels());
  if (vector >= p.vectors || of_block >= p.block_strips) return;
  float added[length] = {};
  if (bias)
#pragma unroll
    for (int k = 0; k < length; ++k) added[k] = widen(bias[channel + k]);
  const int in_line = p.in[1] * s.channels, out_line = p.out[1] * s.channels;
  const LineSteps<int> in_steps(p.along, in_line, s.channels), out_steps(p.along, out_line, s.channels);
  const int in_bytes = in_steps.along * static_cast<int>(sizeof(T));
  const int out_bytes = out_steps.along * static_cast<int>(sizeof(T));
  for (int64_t item = int64_t{blockIdx.x} / p.vector_blocks * p.block_strips + of_block; item < p.items;
       item += p.splits * p.block_strips) {
    auto inner = static_cast<int32_t>(item);
    int32_t middle = s.inner.divide(inner);
    const int32_t image = s.middle.divide(middle);
    const int first = (p.along == 0 ? middle : inner) * strip, line = p.along == 0 ? inner : middle;
    const int first_in = first + p.first[p.along];
    float sums[strip][length];
#pragma unroll
    for (auto& sum : sums)
#pragma unroll
      for (int k = 0; k < length; ++k) sum[k] = added[k];
    const float* of_taps = weights + across * length;
    for (int tap_line = 0; tap_line < p.taps[p.beside]; ++tap_line) {
      const int line_in = line + p.first[p.beside] + tap_line;
      if (static_cast<unsigned>(line_in) >= static_cast<unsigned>(p.in[p.beside])) {
        of_taps += p.tap_columns * held * p.weight_pitch();
        continue;
      }
      const T* pixels = in + int64_t{image} * p.in[0] * in_line + int64_t{line_in} * in_steps.beside +
                        int64_t{first_in} * in_steps.along + channel;
      int at = first_in;
      for (int piece = 0; piece < p.tap_columns; ++piece) {
        constexpr int under = strip + held - 1;  // pixels
        Packed<T, length> pixel[under];
#pragma unroll
        for (int i = 0; i < under; ++i)
          pixel[i] = static_cast<unsigned>(at + i) < static_cast<unsigned>(p.in[p.along])
                         ? load_packed<length>(step_ahead(pixels, i, in_bytes))
                         : Packed<T, length>{};
        float weight[held][length];
#pragma unroll
        for (auto& of_tap : weight) load_floats(of_tap, of_taps), of_taps += p.weight_pitch();
#pragma unroll
        for (int i = 0; i < under; ++i)
#pragma unroll
          for (int k = 0; k < length; ++k) {
            const float value = pixel[i][k];
#pragma unroll
            for (int tap = 0; tap < held; ++tap)
              if (i >= tap && i - tap < strip) sums[(i - tap + strip) % strip][k] += value * weight[tap][k];
          }
        at += held, pixels = step_ahead(pixels, held, in_bytes);
      }
    }
    T* to = out + int64_t{image} * p.out[0] * out_line + int64_t{line} * out_steps.beside +
            int64_t{first} * out_steps.along + channel;
#pragma unroll
    for (int i = 0; i < strip; ++i)
      if (first + i < p.out[p.along]) store_packed(step_ahead(to, i, out_bytes), pack<T, length>(sums[i]));
  }
}

cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias, const ConvolutionSizes& c,
                   bool gradient, cudaStream_t stream) {
  const DepthwiseLines p(c, gradient);
  if (p.items == 0) return cudaSuccess;
  const int counts[2] = {p.along == 0 ? p.out[1] : p.strips, p.along == 0 ? p.strips : p.out[0]};
  const int of_line = p.tap_columns * p.held;
  const Strips s{p,
                 c.groups,
                 gradient,
                 Divider32(c.kernel[p.beside] * of_line),
                 Divider32(of_line),
                 Divider32(counts[0]),
                 Divider32(counts[1])};
  const size_t bytes = static_cast<size_t>(p.weight_floats()) * sizeof(float);
  return with_f32_math(type, [&]<typename T>(T*) {
    return with_lanes_and_taps(p, [&](auto length, auto held) {
      lines_kernel<T, length(), held()><<<static_cast<unsigned>(p.blocks()), DepthwiseLines::threads, bytes, stream>>>(
          static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w), static_cast<const T*>(bias), s);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t depthwise_lines(Scalar type, void* y, const void* x, const void* w, const void* bias,
                            const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch(type, y, x, w, bias, sizes, false, stream);
}

cudaError_t depthwise_lines_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                               cudaStream_t stream) {
  return launch(type, dx, dy, w, nullptr, sizes, true, stream);
}

}  // namespace plimsoll::cuda
