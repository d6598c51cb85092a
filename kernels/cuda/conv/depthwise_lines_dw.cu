#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/common/byte_steps.cuh"
#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/conv/depthwise_lines.cuh"
#include "kernels/cuda/conv/sum_parts.h"

// Depthwise conv_dw without strides, by any rectangle of taps. Neighbouring threads have neighbouring channels, and the
// lines beside them; other warps of a block have other taps of the same pixels, which memory gives once.

namespace plimsoll::cuda {
namespace {

struct Segments {
  ConvolutionSizes sizes;
  DepthwiseLineWeights plan;
  Divider32 lines, segments;
};

// A thread's place in its block: channels, then lines, then taps.
struct WeightThread {
  int across, pixel_thread, block_row;

  __device__ WeightThread(const DepthwiseLineWeights& p, int thread) {
    const int of_block = thread / p.vector_threads;
    across = thread - of_block * p.vector_threads;
    block_row = of_block / p.pixel_threads;
    pixel_thread = of_block - block_row * p.pixel_threads;
  }
};

template <typename T, int length, int held>
__global__ void __launch_bounds__(DepthwiseLineWeights::threads, 2)
    lines_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                    const __grid_constant__ Segments s) {
  let_next_launch_begin();
  constexpr int threads = DepthwiseLineWeights::threads;
  __shared__ float shared[held * length * threads];
  const ConvolutionSizes& c = s.sizes;
  const DepthwiseLineWeights& p = s.plan;
  unsigned rest = blockIdx.x;
  const auto take = [&](int count) {
    const unsigned of = rest / static_cast<unsigned>(count), index = rest - of * static_cast<unsigned>(count);
    rest = of;
    return static_cast<int>(index);
  };
  const int first_vector = take(p.vector_blocks) * p.vector_threads;
  const int first_row = take(p.tap_blocks) * p.block_tap_rows;
  const int64_t split = rest;
  const WeightThread me(p, static_cast<int>(threadIdx.x));
  const int vector = first_vector + me.across, row = first_row + me.block_row, channel = vector * length;
  const bool works = me.block_row < p.block_tap_rows && row < p.tap_rows && vector < p.vectors;
  const int tap_line = row / p.tap_columns, first_tap = (row - tap_line * p.tap_columns) * held;
  const int x_line = c.x[1] * c.groups, y_line = c.y[1] * c.groups;
  const LineSteps<int> x_steps(p.along, x_line, c.groups), y_steps(p.along, y_line, c.groups);
  const int x_bytes = x_steps.along * static_cast<int>(sizeof(T));
  const int y_bytes = y_steps.along * static_cast<int>(sizeof(T));

  float sums[held][length] = {};
  for (int64_t item = split * p.pixel_threads + me.pixel_thread; works && item < p.items;
       item += p.splits * p.pixel_threads) {
    auto line = static_cast<int32_t>(item);
    int32_t segment = s.lines.divide(line);
    const int32_t image = s.segments.divide(segment);
    const int line_x = line + tap_line - c.pad[p.beside];
    if (static_cast<unsigned>(line_x) >= static_cast<unsigned>(c.x[p.beside])) continue;
    const int first = segment * p.segment, end = min(first + p.segment, c.y[p.along]);
    int at_y = first, at_x = first + first_tap - c.pad[p.along];
    // Pixels of x from there on are under no tap or not in the image.
    const auto limit_x = static_cast<unsigned>(max(min(c.x[p.along], at_x + end - first + held - 1), 0));
    const T* of_x = x + int64_t{image} * c.x[0] * x_line + int64_t{line_x} * x_steps.beside +
                    int64_t{at_x} * x_steps.along + channel;
    const T* of_dy = dy + int64_t{image} * c.y[0] * y_line + int64_t{line} * y_steps.beside +
                     int64_t{first} * y_steps.along + channel;
    const auto load_x = [&](int i) {
      return static_cast<unsigned>(at_x + i) < limit_x ? load_packed<length>(step_ahead(of_x, i, x_bytes))
                                                       : Packed<T, length>{};
    };
    const auto load_dy = [&](int i) {
      return at_y + i < end ? load_packed<length>(step_ahead(of_dy, i, y_bytes)) : Packed<T, length>{};
    };
    Packed<T, length> first_pixels[held], given[held], next[held];
#pragma unroll
    for (int i = 0; i < held - 1; ++i) first_pixels[i] = load_x(i);
#pragma unroll
    for (int i = 0; i < held; ++i) given[i] = load_dy(i), next[i] = load_x(held - 1 + i);
    float window[held][length];  // pixel i stands at i modulo the held taps
#pragma unroll
    for (int i = 0; i < held - 1; ++i)
#pragma unroll
      for (int k = 0; k < length; ++k) window[i][k] = first_pixels[i][k];
    while (at_y < end) {
      at_y += held, at_x += held, of_x = step_ahead(of_x, held, x_bytes), of_dy = step_ahead(of_dy, held, y_bytes);
#pragma unroll
      for (int i = 0; i < held; ++i) {
        float grad[length];
#pragma unroll
        for (int k = 0; k < length; ++k) grad[k] = given[i][k], window[(i + held - 1) % held][k] = next[i][k];
        given[i] = load_dy(i), next[i] = load_x(held - 1 + i);  // for the next pixels, while these are multiplied
#pragma unroll
        for (int j = 0; j < held; ++j)
#pragma unroll
          for (int k = 0; k < length; ++k) sums[j][k] += window[(i + j) % held][k] * grad[k];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < held; ++j)
#pragma unroll
    for (int k = 0; k < length; ++k) shared[(j * length + k) * threads + threadIdx.x] = sums[j][k];
  __syncthreads();
  // Threads of other pixels add up in their order.
  const int vectors = p.vector_threads * p.block_tap_rows;
  for (int i = static_cast<int>(threadIdx.x); i < vectors * held * length; i += threads) {
    const int of_thread = i / vectors, at = i - of_thread * vectors;
    const int block_row = at / p.vector_threads, across = at - block_row * p.vector_threads;
    const int to_row = first_row + block_row, to_line = to_row / p.tap_columns;
    const int tap = (to_row - to_line * p.tap_columns) * held + of_thread / length;
    if (to_row >= p.tap_rows || tap >= c.kernel[p.along] || first_vector + across >= p.vectors) continue;
    const float* from = shared + of_thread * threads + block_row * p.pixel_threads * p.vector_threads + across;
    float total = 0;
#pragma unroll 8
    for (int pixel = 0; pixel < p.pixel_threads; ++pixel) total += from[pixel * p.vector_threads];
    const LineSteps<int> tap_steps(p.along, c.kernel[1], 1);
    const int64_t to_channel = int64_t{first_vector + across} * length + of_thread % length;
    partial[(split * c.groups + to_channel) * c.taps() + to_line * tap_steps.beside + tap * tap_steps.along] = total;
  }
}

}  // namespace

cudaError_t depthwise_lines_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                               const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  const DepthwiseLineWeights p(sizes);
  const Segments s{sizes, p, Divider32(sizes.y[p.beside]), Divider32(p.segments)};
  auto* partial = static_cast<float*>(workspace);
  const cudaError_t error = with_f32_math(type, [&]<typename T>(T*) {
    return with_lanes_and_taps(p, [&](auto length, auto held) {
      lines_dw_kernel<T, length(), held()>
          <<<static_cast<unsigned>(p.blocks()), DepthwiseLineWeights::threads, 0, stream>>>(
              partial, static_cast<const T*>(x), static_cast<const T*>(dy), s);
      return cudaGetLastError();
    });
  });
  if (error != cudaSuccess) return error;
  return sum_parts(to, dw, partial, p.splits, sizes.weights(), stream);
}

}  // namespace plimsoll::cuda
