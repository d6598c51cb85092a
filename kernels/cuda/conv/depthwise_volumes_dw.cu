#include "kernels/cuda/conv/depthwise_volumes.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/volumes.h"

// Depthwise conv_dw over volumes, with threads as for y. A thread goes through planes of x and keeps its tile of the
// three planes of dy that each of them meets, so that memory gives both once. With more taps in depth, or strides,
// blocks have one plane of taps each.

namespace plimsoll::cuda {
namespace {

struct VolumeWeightsCall {
  DepthwiseVolumeSizes sizes;
  DepthwiseVolumeWeights plan;
};

// sums += the products of dy's tile and the pixels of x under each tap.
template <VolumeTile tile, int taps, int made_down, int made_across, int read_down, int read_across, int length>
__device__ void add_products(float (&sums)[taps][taps][length], const float (&grads)[made_down][made_across][length],
                             const float (&pixels)[read_down][read_across][length]) {
#pragma unroll
  for (int i = 0; i < made_down; ++i)
#pragma unroll
    for (int j = 0; j < made_across; ++j)
#pragma unroll
      for (int down = 0; down < taps; ++down)
#pragma unroll
        for (int across = 0; across < taps; ++across)
#pragma unroll
          for (int k = 0; k < length; ++k)
            sums[down][across][k] += pixels[i * tile.stride() + down][j * tile.stride() + across][k] * grads[i][j][k];
}

template <typename T, int length, int taps, VolumeSteps steps, bool keeps_planes>
__global__ void __launch_bounds__(DepthwiseVolumeWeights::max_threads, keeps_planes || std::is_same_v<T, float> ? 1 : 2)
    volumes_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                      const __grid_constant__ VolumeWeightsCall s) {
  constexpr VolumeTile tile{taps, steps, keeps_planes};
  constexpr int made_down = tile.made_down(), made_across = tile.made_across();
  constexpr int read_down = tile.read_down(), read_across = tile.read_across();
  constexpr int ring = keeps_planes ? DepthwiseVolumePlan::ring_taps : 1;
  constexpr int plane_sums = taps * taps * length, threads = DepthwiseVolumeWeights::max_threads;
  constexpr int held_sums = 6 * length;  // of a thread in shared memory at once
  __shared__ float shared[held_sums * threads];
  const DepthwiseVolumeSizes& c = s.sizes;
  const DepthwiseVolumeWeights& p = s.plan;
  const int vector_block = static_cast<int>(blockIdx.x) % p.vector_blocks;
  const int rest = static_cast<int>(blockIdx.x) / p.vector_blocks;
  const int first_tap = keeps_planes ? 0 : rest % p.depth_blocks, split = rest / p.depth_blocks;

  float sums[ring][taps][taps][length] = {};
  for (int64_t item = split; item < p.rectangles; item += p.splits) {
    const VolumePlace me(p, static_cast<int>(threadIdx.x), vector_block, static_cast<int>(item), c.y[0]);
    if (!me.works) break;
    const int channel = me.vector * length;
    const int down = me.tile_down * made_down, across = me.tile_across * made_across;
    const VolumeTilePixels<const T, read_down, read_across, length> of_x(
        x, me.image, c.x, down * tile.stride() - c.pad[1], across * tile.stride() - c.pad[2], c.channels, channel);
    const VolumeTilePixels<const T, made_down, made_across, length> of_dy(dy, me.image, c.y, down, across, c.channels,
                                                                          channel);
    float grads[ring][made_down][made_across][length] = {};  // of the plane so many planes ago
#pragma unroll 1
    for (int plane = me.begin; plane < me.end + ring - 1; ++plane) {
      const int under = keeps_planes ? plane - c.pad[0] : plane * c.stride[0] - c.pad[0] + first_tap;
      const bool is_there = static_cast<unsigned>(under) < static_cast<unsigned>(c.x[0]);
      if (!keeps_planes && !is_there) continue;
#pragma unroll
      for (int i = ring - 1; i > 0; --i) copy_all(grads[i], grads[i - 1]);
      Packed<T, length> packed_grads[made_down][made_across] = {}, packed_pixels[read_down][read_across];
      if (plane < me.end) of_dy.load(packed_grads, plane);
      if (is_there) of_x.load(packed_pixels, under);
      widen_all(grads[0], packed_grads);
      if (!is_there) continue;
      float pixels[read_down][read_across][length];
      widen_all(pixels, packed_pixels);
#pragma unroll
      for (int i = 0; i < ring; ++i) add_products<tile>(sums[i], grads[i], pixels);
    }
  }
  // Threads of other tiles add up in their order, some of their sums after the others.
#pragma unroll
  for (int first = 0; first < ring * plane_sums; first += held_sums) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < held_sums; ++i) {
      const int at = first + i, tap = at / length;
      if (at < ring * plane_sums)
        shared[i * threads + threadIdx.x] = sums[tap / (taps * taps)][tap / taps % taps][tap % taps][at % length];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < held_sums * p.vector_threads; i += static_cast<int>(blockDim.x)) {
      const int of_thread = i / p.vector_threads, lane = i - of_thread * p.vector_threads;
      const int at = first + of_thread, tap = at / length, vector = vector_block * p.vector_threads + lane;
      const int taps_at[3] = {first_tap + tap / (taps * taps), tap / taps % taps, tap % taps};
      if (at >= ring * plane_sums || vector >= p.vectors || taps_at[0] >= c.kernel[0] || taps_at[1] >= c.kernel[1] ||
          taps_at[2] >= c.kernel[2])
        continue;
      float total = 0;
      for (int of_tile = 0; of_tile < p.block_tiles(); ++of_tile)
        total += shared[of_thread * threads + of_tile * p.vector_threads + lane];
      const int64_t to_channel = int64_t{split} * c.channels + vector * length + at % length;
      partial[((to_channel * c.kernel[0] + taps_at[0]) * c.kernel[1] + taps_at[1]) * c.kernel[2] + taps_at[2]] = total;
    }
  }
}

}  // namespace

cudaError_t depthwise_volumes_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                 const DepthwiseVolumeSizes& sizes, void* workspace, cudaStream_t stream) {
  const VolumeWeightsCall s{sizes, DepthwiseVolumeWeights(sizes)};
  auto* partial = static_cast<float*>(workspace);
  const cudaError_t error = with_f32_math(type, [&]<typename T>(T*) {
    return with_volume_form<VolumeSteps::One, VolumeSteps::Two>(
        s.plan, [&](auto length, auto taps, auto steps, auto keeps_planes) {
          volumes_dw_kernel<T, length(), taps(), steps(), keeps_planes()>
              <<<static_cast<unsigned>(s.plan.blocks()), static_cast<unsigned>(s.plan.threads()), 0, stream>>>(
                  partial, static_cast<const T*>(x), static_cast<const T*>(dy), s);
          return cudaGetLastError();
        });
  });
  if (error != cudaSuccess) return error;
  return sum_parts(to, dw, partial, s.plan.splits, sizes.weights(), stream);
}

}  // namespace plimsoll::cuda
