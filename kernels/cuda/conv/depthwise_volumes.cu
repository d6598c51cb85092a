#include "kernels/cuda/conv/depthwise_volumes.cuh"
#include "kernels/cuda/conv/volumes.h"

// Depthwise conv and conv_dx over volumes. Neighbouring threads have neighbouring channels, and the tiles of a plane
// beside them. A thread goes through planes of the input: with three taps in depth it adds each of them to three planes
// of results, of which the last one is complete then; with more taps or strides it makes one plane after the other, and
// the L1 cache gives it the planes that it has read before.

namespace plimsoll::cuda {
namespace {

constexpr int pitch_vectors = DepthwiseVolumePlan::max_vector_threads;  // of a tap's weights in shared memory

struct VolumeCall {
  DepthwiseVolumes plan;
  int channels, kernel[3], plane_pad[2];
};

// Weights of a block's channels in shared memory as [depth][tap][channel], in f32 and in the order in which they meet
// pixels, with zeros for taps that the kernel does not have.
template <typename T, int length, int taps>
__device__ void stage_weights(float* weights, const T* w, const VolumeCall& s, int depth_taps, int first_channel) {
  constexpr int pitch = pitch_vectors * length, plane = taps * taps;
  const DepthwiseVolumes& p = s.plan;
  const int count = depth_taps * plane * pitch;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int tap = i / pitch, channel = i - tap * pitch;
    int at[3] = {tap / plane, tap % plane / taps, tap % taps};
    bool there = channel < p.vector_threads * length && first_channel + channel < s.channels;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      there = there && at[d] < s.kernel[d];
      if (d == 0 ? p.turns_depth() : p.turns_planes()) at[d] = s.kernel[d] - 1 - at[d];
    }
    const int64_t from = ((int64_t{first_channel} + channel) * s.kernel[0] + at[0]) * s.kernel[1] + at[1];
    weights[i] = there ? widen(w[from * s.kernel[2] + at[2]]) : 0.0f;
  }
  __syncthreads();
}

// sums += the pixels of a plane times one plane of taps. Of Half, window q is made of pixels q, q - 1 and so on, of
// which the last one is the tile's first.
template <int taps, VolumeSteps steps, int made_down, int made_across, int read_down, int read_across, int length>
__device__ void multiply_plane(float (&sums)[made_down][made_across][length],
                               const float (&pixels)[read_down][read_across][length], const float* weights) {
  constexpr VolumeTile tile{taps, steps};
  constexpr int window = tile.window(), stride = tile.stride(), last = tile.window_taps() - 1;
#pragma unroll
  for (int tap_down = 0; tap_down < taps; ++tap_down)
#pragma unroll
    for (int tap_across = 0; tap_across < taps; ++tap_across) {
      const Packed<float, length> weight =
          load_packed<length>(weights + (tap_down * taps + tap_across) * pitch_vectors * length);
#pragma unroll
      for (int i = 0; i < made_down / window; ++i)
#pragma unroll
        for (int j = 0; j < made_across / window; ++j)
#pragma unroll
          for (int k = 0; k < length; ++k) {
            if constexpr (steps == VolumeSteps::Half)
              sums[i * window + tap_down % window][j * window + tap_across % window][k] +=
                  pixels[i + last - tap_down / window][j + last - tap_across / window][k] * weight[k];
            else
              sums[i][j][k] += pixels[i * stride + tap_down][j * stride + tap_across][k] * weight[k];
          }
    }
}

template <typename T, int length, int taps, VolumeSteps steps, bool keeps_planes>
__global__ void __launch_bounds__(DepthwiseVolumes::max_threads, std::is_same_v<T, float> ? 1 : 2)
    volumes_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w, const T* __restrict__ bias,
                   const __grid_constant__ VolumeCall s) {
  constexpr VolumeTile tile{taps, steps};
  constexpr int made_down = tile.made_down(), made_across = tile.made_across();
  constexpr int read_down = tile.read_down(), read_across = tile.read_across();
  constexpr int ring = keeps_planes ? DepthwiseVolumePlan::ring_taps : 1;
  constexpr int planes = steps == VolumeSteps::Half ? 1 : ring;  // of sums
  constexpr int tap_plane = taps * taps * pitch_vectors * length;
  extern __shared__ float4 words[];
  float* const all_weights = reinterpret_cast<float*>(words);
  const DepthwiseVolumes& p = s.plan;
  const int vector_block = static_cast<int>(blockIdx.x) % p.vector_blocks;
  const VolumePlace me(p, static_cast<int>(threadIdx.x), vector_block, static_cast<int>(blockIdx.x) / p.vector_blocks,
                       p.out[0]);
  stage_weights<T, length, taps>(all_weights, w, s, keeps_planes ? ring : s.kernel[0],
                                 vector_block * p.vector_threads * length);
  if (!me.works) return;
  const int channel = me.vector * length;
  const float* const weights = all_weights + me.lane * length;
  int first_out[2], first_in[2];
#pragma unroll
  for (int d = 0; d < 2; ++d) {
    const int at = d == 0 ? me.tile_down * made_down : me.tile_across * made_across;
    if constexpr (steps == VolumeSteps::Half) {
      const int first_window = p.first_window[d] + at / tile.window();
      first_in[d] = first_window - (tile.window_taps() - 1);
      first_out[d] = first_window * tile.window() - s.plane_pad[d];
    } else {
      first_out[d] = at, first_in[d] = at * tile.stride() + p.first[d + 1];
    }
  }
  const VolumeTilePixels<const T, read_down, read_across, length> from(in, me.image, p.in, first_in[0], first_in[1],
                                                                       s.channels, channel);
  const VolumeTilePixels<T, made_down, made_across, length> to(out, me.image, p.out, first_out[0], first_out[1],
                                                               s.channels, channel);
  float added[length] = {};
  if (bias)
#pragma unroll
    for (int k = 0; k < length; ++k) added[k] = widen(bias[channel + k]);
  float sums[planes][made_down][made_across][length];
  const auto begin_sums = [&](float(&of_plane)[made_down][made_across][length]) {
#pragma unroll
    for (auto& line : of_plane)
#pragma unroll
      for (auto& sum : line)
#pragma unroll
        for (int k = 0; k < length; ++k) sum[k] = added[k];
  };
  using Pixels = Packed<T, length>[read_down][read_across];
  const auto multiply = [&](float(&of_plane)[made_down][made_across][length], const Pixels& packed, int tap) {
    float pixels[read_down][read_across][length];
    widen_all(pixels, packed);
    multiply_plane<taps, steps>(of_plane, pixels, weights + tap * tap_plane);
  };
  const auto is_there = [&](int under) { return static_cast<unsigned>(under) < static_cast<unsigned>(p.in[0]); };
  const auto load_or_clear = [&](Pixels& packed, int under) {
    if (is_there(under))
      from.load(packed, under);
    else
      clear_all(packed);
  };
  if constexpr (keeps_planes && steps == VolumeSteps::Half) {
    // under[i] is the plane that tap i meets, and under[ring] the one that is on its way meanwhile.
    Pixels under[ring + 1];
#pragma unroll
    for (int i = 0; i < ring; ++i) load_or_clear(under[i], me.begin + p.first[0] + i);
#pragma unroll 1
    for (int plane = me.begin; plane < me.end; ++plane) {
      if (plane + 1 < me.end) load_or_clear(under[ring], plane + p.first[0] + ring);
      begin_sums(sums[0]);
#pragma unroll
      for (int i = 0; i < ring; ++i) multiply(sums[0], under[i], i);
      to.store(sums[0], plane);
#pragma unroll
      for (int i = 0; i < ring; ++i) copy_all(under[i], under[i + 1]);
    }
  } else if constexpr (keeps_planes) {
    // sums[i] are those of the plane that began i planes ago. Pixels of the next plane are on their way while those of
    // one are multiplied, where there are registers for both.
    constexpr bool looks_ahead = steps == VolumeSteps::One && std::is_same_v<T, bf16>;
    const auto multiply_all = [&](const float(&pixels)[read_down][read_across][length]) {
#pragma unroll
      for (int i = 0; i < ring; ++i) multiply_plane<taps, steps>(sums[i], pixels, weights + i * tap_plane);
    };
    Pixels ahead = {};
    if (looks_ahead && is_there(me.begin + p.first[0])) from.load(ahead, me.begin + p.first[0]);
    begin_sums(sums[0]);
#pragma unroll 1
    for (int plane = me.begin; plane < me.end + ring - 1; ++plane) {
      const int under = plane + p.first[0];
      if constexpr (looks_ahead) {
        float pixels[read_down][read_across][length];
        widen_all(pixels, ahead);
        if (is_there(under + 1)) from.load(ahead, under + 1);
        if (is_there(under)) multiply_all(pixels);
      } else if (is_there(under)) {
        Pixels packed;
        from.load(packed, under);
        float pixels[read_down][read_across][length];
        widen_all(pixels, packed);
        multiply_all(pixels);
      }
      const int done = plane - (ring - 1);
      if (done >= me.begin) to.store(sums[ring - 1], done);
#pragma unroll
      for (int i = ring - 1; i > 0; --i) copy_all(sums[i], sums[i - 1]);
      begin_sums(sums[0]);
    }
  } else {
#pragma unroll 1
    for (int plane = me.begin; plane < me.end; ++plane) {
      begin_sums(sums[0]);
#pragma unroll 1
      for (int tap = 0; tap < s.kernel[0]; ++tap) {
        const int reach = plane * p.out_step + p.first[0] + tap * p.tap_step, under = reach / p.every;
        if (reach < 0 || under * p.every != reach || under >= p.in[0]) continue;
        Pixels packed;
        from.load(packed, under);
        multiply(sums[0], packed, tap);
      }
      to.store(sums[0], plane);
    }
  }
}

cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias,
                   const DepthwiseVolumeSizes& c, bool gradient, cudaStream_t stream) {
  VolumeCall s{
      DepthwiseVolumes(c, gradient), c.channels, {c.kernel[0], c.kernel[1], c.kernel[2]}, {c.pad[1], c.pad[2]}};
  const DepthwiseVolumes& p = s.plan;
  return with_f32_math(type, [&]<typename T>(T*) {
    return with_volume_form<VolumeSteps::One, VolumeSteps::Two, VolumeSteps::Half>(
        p, [&](auto length, auto taps, auto steps, auto keeps_planes) {
          const int depth_taps = keeps_planes() ? DepthwiseVolumePlan::ring_taps : c.kernel[0];
          const size_t bytes = sizeof(float) * pitch_vectors * length() * taps() * taps() * depth_taps;
          volumes_kernel<T, length(), taps(), steps(), keeps_planes()>
              <<<static_cast<unsigned>(p.blocks()), static_cast<unsigned>(p.threads()), bytes, stream>>>(
                  static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w),
                  static_cast<const T*>(bias), s);
          return cudaGetLastError();
        });
  });
}

}  // namespace

cudaError_t depthwise_volumes(Scalar type, void* y, const void* x, const void* w, const void* bias,
                              const DepthwiseVolumeSizes& sizes, cudaStream_t stream) {
  return launch(type, y, x, w, bias, sizes, false, stream);
}

cudaError_t depthwise_volumes_dx(Scalar type, void* dx, const void* dy, const void* w,
                                 const DepthwiseVolumeSizes& sizes, cudaStream_t stream) {
  return launch(type, dx, dy, w, nullptr, sizes, true, stream);
}

}  // namespace plimsoll::cuda
