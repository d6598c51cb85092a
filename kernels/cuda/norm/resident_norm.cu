#include "kernels/cuda/elementwise/formulas.cuh"
#include "kernels/cuda/norm/batch_norm.h"
#include "kernels/cuda/norm/moments.cuh"
#include "kernels/cuda/norm/resident_channels.cuh"

#include <cmath>

// Serves batch_norm with channels last in one launch: x is read once where all blocks' shared memory holds it, and what
// it does not hold once more. Threads sum differences from an element of their own, and blocks from the mean of a
// thread, so that little cancels (moments.cuh).

namespace plimsoll::cuda {
namespace {

enum class Behind : uint8_t { Activation, Residual, Silu };  // a ReLU may stand behind a residual, too

template <typename T, Behind behind>
__global__ void __launch_bounds__(resident_threads, 1)
    resident_norm_kernel(BatchNormCall call, float lowest, float* mean_out, float* var_out, float2* partials,
                         ResidentGrid grid) {
  constexpr bool residual = behind == Behind::Residual;
  constexpr int n = vector_length<T>, tensors = residual ? 2 : 1, depth = residual ? 4 : 8;
  extern __shared__ uint4 shared[];
  auto* memory = reinterpret_cast<float*>(shared);
  uint4* kept = shared + resident_threads * n / 4 + threadIdx.x;
  const ResidentChannels& c = grid.channels;
  const auto words = ResidentWords::of_thread<n>(grid);
  const int thread = static_cast<int>(threadIdx.x), copies = c.slab_words * n / c.channels;
  const auto* x = static_cast<const uint4*>(call.x) + words.first;
  const auto* added = static_cast<const uint4*>(call.residual) + words.first;
  auto place = [&](int slot, int tensor) { return kept + (slot * tensors + tensor) * resident_threads; };

  ResidentRing ring(words.count, grid.slots);
  auto copy = [&](int word, int slot) {
    copy_async(place(slot, 0), x + word * words.stride, true);
    if (residual) copy_async(place(slot, 1), added + word * words.stride, true);
  };
  auto copy_first = [&](int word, int slot) {
    copy_async(place(slot, 0), x + word * words.stride, true);
    if (residual && ring.stays(word)) copy_async(place(slot, 1), added + word * words.stride, true);
  };
  ring.template start<depth>(copy_first);
  const int64_t channel = int64_t{words.slab} * c.channels + thread;
  float scale = 1.0f, bias = 0.0f;
  if (thread < c.channels) {
    if (call.scale) scale = load_any<float>(AnyTensor{call.scale, call.parameter_type}, channel);
    if (call.bias) bias = load_any<float>(AnyTensor{call.bias, call.parameter_type}, channel);
  }
  PivotSums sums[n];
  ring.template go_forward<depth>(copy_first, [&](int word, int slot) {
    const auto loaded = packed_word<T, n>(*place(slot, 0));
    if (word == 0)
#pragma unroll
      for (int i = 0; i < n; ++i) sums[i].pivot = loaded[i];
#pragma unroll
    for (int i = 0; i < n; ++i) sums[i].add(loaded[i]);
  });

  const auto count = static_cast<float>(words.count);
  float shift[n], squares[n], pivots[n];
  Moments moments[n];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    moments[i] = sums[i].moments(count);
    if (thread < c.slab_words) memory[thread * n + i] = moments[i].mean;
  }
  __syncthreads();
  load_channels(pivots, memory, words.channel, c.channels);
  const float pivot = thread < c.channels ? memory[thread] : 0.0f;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float difference = count > 0.0f ? moments[i].mean - pivots[i] : 0.0f;
    shift[i] = difference * count;
    squares[i] = moments[i].squares + shift[i] * difference;
  }
  const float sum = sum_of_channel(shift, memory, c), square = sum_of_channel(squares, memory, c);
  if (thread < c.channels) {
    const Moments of_block =
        PivotSums{pivot, sum, square}.moments(static_cast<float>(grid.rows.of(words.part) * copies));
    partials[int64_t{words.part} * c.channels * c.slabs + channel] = make_float2(of_block.mean, of_block.squares);
  }
  cooperative_groups::this_grid().sync();

  const float first = __ldcg(&partials[words.slab * c.channels + thread % c.channels].x);
  const float2 total = sum_of_parts(partials, grid, words.slab, memory, [&](int part, float2 of_part) {
    const float difference = of_part.x - first, shifted = static_cast<float>(grid.rows.of(part) * copies) * difference;
    return make_float2(shifted, of_part.y + shifted * difference);
  });
  float *means = memory, *factors = means + c.channels, *offsets = factors + c.channels;
  if (thread < c.channels) {
    const auto elements = static_cast<float>(c.rows * copies);
    const Moments of_all = PivotSums{first, total.x, total.y}.moments(elements);
    const float var = of_all.squares / elements;
    means[thread] = of_all.mean;
    factors[thread] = 1.0f / sqrtf(var + call.eps) * scale;
    offsets[thread] = bias;
    if (words.part == 0) mean_out[channel] = of_all.mean, var_out[channel] = var;
  }
  __syncthreads();
  float mean[n], factor[n], offset[n];
  load_channels(mean, means, words.channel, c.channels);
  load_channels(factor, factors, words.channel, c.channels);
  load_channels(offset, offsets, words.channel, c.channels);
  auto* y = static_cast<uint4*>(call.y) + words.first;
  ring.template go_back<depth>(copy, [&](int word, int slot) {
    const auto loaded = packed_word<T, n>(*place(slot, 0));
    Packed<T, n> more;
    if (residual) more = packed_word<T, n>(*place(slot, 1));
    float result[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      result[i] = (loaded[i] - mean[i]) * factor[i] + offset[i];
      if (residual) result[i] += more[i];
      if (behind == Behind::Silu)
        result[i] *= sigmoid(result[i]);
      else if (result[i] < lowest)
        result[i] = lowest;
    }
    store_packed(reinterpret_cast<T*>(y + word * words.stride), pack<T>(result));
  });
}

}  // namespace

cudaError_t batch_norm_resident(const BatchNormCall& call, float* mean, float* var, cudaStream_t stream) {
  if (call.shape.per_channel() * call.shape.channels == 0) return cudaSuccess;
  return with_resident_channels(call.shape, call.x_type, [&]<typename T>(T*, const ResidentChannels& channels) {
    const ResidentLaunch<T> launch(channels, call.residual ? 2 : 1, 0);
    const auto start = [&](auto kernel) {
      return launch.start(kernel, stream, call, call.activation == NormActivation::Relu ? 0.0f : -INFINITY, mean, var,
                          reinterpret_cast<float2*>(call.workspace), launch.grid);
    };
    if (call.activation == NormActivation::Silu) return start(resident_norm_kernel<T, Behind::Silu>);
    return call.residual ? start(resident_norm_kernel<T, Behind::Residual>)
                         : start(resident_norm_kernel<T, Behind::Activation>);
  });
}

}  // namespace plimsoll::cuda
