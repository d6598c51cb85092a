#include "kernels/cuda/elementwise/formulas.cuh"
#include "kernels/cuda/norm/batch_norm.h"
#include "kernels/cuda/norm/resident_channels.cuh"

// Serves batch_norm_grad with channels last in one launch. x and dz, as batch_norm_grad.cu has it, are read once where
// all blocks' shared memory holds them.

namespace plimsoll::cuda {
namespace {

enum class Source : uint8_t { Input, Silu, Output };

template <typename T, Source source>
__global__ void __launch_bounds__(resident_threads, 1)
    resident_grad_kernel(BatchNormGradCall call, float2* partials, ResidentGrid grid) {
  constexpr bool behind_residual = source == Source::Output;
  constexpr int n = vector_length<T>, tensors = 2, depth = behind_residual ? 3 : 4;
  extern __shared__ uint4 shared[];
  auto* memory = reinterpret_cast<float*>(shared);
  uint4* kept = shared + resident_threads * n / 4 + threadIdx.x;
  uint4* passing = kept + grid.slots * tensors * resident_threads;  // y and the second dy
  const ResidentChannels& c = grid.channels;
  const auto words = ResidentWords::of_thread<n>(grid);
  const int thread = static_cast<int>(threadIdx.x), copies = c.slab_words * n / c.channels;
  auto word_of = [&](const void* tensor, int word) {
    return static_cast<const uint4*>(tensor) + words.first + word * words.stride;
  };
  auto place = [&](int slot, int tensor) { return kept + (slot * tensors + tensor) * resident_threads; };
  auto passing_place = [&](int word, int tensor) { return passing + (word % depth * 2 + tensor) * resident_threads; };

  ResidentRing ring(words.count, grid.slots);
  auto copy_first = [&](int word, int slot) {
    copy_async(place(slot, 0), word_of(call.x, word), true);
    copy_async(place(slot, 1), word_of(call.dy, word), true);
    if constexpr (behind_residual) {
      copy_async(passing_place(word, 0), word_of(call.y, word), true);
      if (call.more_dy) copy_async(passing_place(word, 1), word_of(call.more_dy, word), true);
    }
  };
  ring.template start<depth>(copy_first);

  // What the activation saw is (x - mean) * gate + offset, with the rounding of the forward pass.
  const int64_t channel = int64_t{words.slab} * c.channels + thread;
  float channel_mean = 0, rstd = 0, scale = 0, bias = 0;
  float *means = memory, *gates = means + c.channels, *offsets = gates + c.channels;
  if (thread < c.channels) {
    channel_mean = call.mean[channel];
    rstd = 1.0f / sqrtf(call.var[channel] + call.eps);
    scale = load_any<float>(AnyTensor{call.scale, call.parameter_type}, channel);
    if (call.bias) bias = load_any<float>(AnyTensor{call.bias, call.parameter_type}, channel);
    means[thread] = channel_mean;
    gates[thread] = call.bias ? rstd * scale : 0.0f;
    offsets[thread] = call.bias ? bias : 1.0f;
  }
  __syncthreads();
  float mean[n], factor[n], offset[n], sums[n] = {}, products[n] = {};
  load_channels(mean, means, words.channel, c.channels);
  load_channels(factor, gates, words.channel, c.channels);
  load_channels(offset, offsets, words.channel, c.channels);
  auto passed = [&](float dz, float centered, int i) {
    if constexpr (source == Source::Silu) return dz * silu_slope(centered * factor[i] + offset[i]);
    if constexpr (source == Source::Input) return centered * factor[i] + offset[i] > 0.0f ? dz : 0.0f;
    return dz;
  };
  ring.template go_forward<depth>(copy_first, [&](int word, int slot) {
    const auto x = packed_word<T, n>(*place(slot, 0)), dy = packed_word<T, n>(*place(slot, 1));
    float dz[n];
#pragma unroll
    for (int i = 0; i < n; ++i) dz[i] = dy[i];
    if constexpr (behind_residual) {
      const auto y = packed_word<T, n>(*passing_place(word, 0));
      if (call.more_dy) {
        const auto more = packed_word<T, n>(*passing_place(word, 1));
#pragma unroll
        for (int i = 0; i < n; ++i) dz[i] += more[i];
      }
#pragma unroll
      for (int i = 0; i < n; ++i)
        if (!(y[i] > 0.0f)) dz[i] = 0.0f;
      const auto rounded = pack<T>(dz);
      *place(slot, 1) = make_uint4(rounded.word[0], rounded.word[1], rounded.word[2], rounded.word[3]);
      store_packed(static_cast<T*>(call.dresidual) + (words.first + word * words.stride) * n, rounded);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float centered = x[i] - mean[i], through = passed(dz[i], centered, i);
      sums[i] += through;
      products[i] += through * centered;
    }
  });
  const float sum = sum_of_channel(sums, memory, c), product = sum_of_channel(products, memory, c) * rstd;
  if (thread < c.channels) partials[int64_t{words.part} * c.channels * c.slabs + channel] = make_float2(sum, product);
  cooperative_groups::this_grid().sync();

  const float2 total = sum_of_parts(partials, grid, words.slab, memory, [](int, float2 of_part) { return of_part; });
  float *averages = offsets + c.channels, *slopes = averages + c.channels;
  if (thread < c.channels) {
    const auto elements = static_cast<float>(c.rows * copies);
    means[thread] = channel_mean;
    gates[thread] = rstd * scale;
    offsets[thread] = bias;
    averages[thread] = total.x / elements;
    slopes[thread] = rstd * (total.y / elements);
    if (words.part == 0) {
      store_any(call.dscale, call.parameter_type, channel, static_cast<double>(total.y));
      store_any(call.dbias, call.parameter_type, channel, static_cast<double>(total.x));
    }
  }
  __syncthreads();
  float average[n], slope[n];
  load_channels(factor, gates, words.channel, c.channels);
  load_channels(average, averages, words.channel, c.channels);
  load_channels(slope, slopes, words.channel, c.channels);
  auto copy_again = [&](int word, int slot) {
    copy_async(place(slot, 0), word_of(call.x, word), true);
    copy_async(place(slot, 1), word_of(behind_residual ? call.dresidual : call.dy, word), true);
  };
  const bool gated = call.bias != nullptr;
  ring.template go_back<depth>(copy_again, [&](int word, int slot) {
    const auto x = packed_word<T, n>(*place(slot, 0)), dz = packed_word<T, n>(*place(slot, 1));
    float result[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float centered = x[i] - mean[i];
      float through = dz[i];
      if constexpr (source == Source::Silu)
        through = passed(through, centered, i);
      else if (source == Source::Input && gated)
        through = passed(through, centered, i);
      result[i] = factor[i] * (through - average[i] - centered * slope[i]);
    }
    store_packed(static_cast<T*>(call.dx) + (words.first + word * words.stride) * n, pack<T>(result));
  });
}

}  // namespace

cudaError_t batch_norm_grad_resident(const BatchNormGradCall& call, cudaStream_t stream) {
  if (call.shape.per_channel() * call.shape.channels == 0) return cudaSuccess;
  return with_resident_channels(call.shape, call.x_type, [&]<typename T>(T*, const ResidentChannels& channels) {
    const ResidentLaunch<T> launch(channels, 2, call.y ? 6 : 0);
    const auto start = [&](auto kernel) {
      return launch.start(kernel, stream, call, reinterpret_cast<float2*>(call.workspace), launch.grid);
    };
    if (call.y) return start(resident_grad_kernel<T, Source::Output>);
    return call.bias && call.activation == NormActivation::Silu ? start(resident_grad_kernel<T, Source::Silu>)
                                                                : start(resident_grad_kernel<T, Source::Input>);
  });
}

}  // namespace plimsoll::cuda
