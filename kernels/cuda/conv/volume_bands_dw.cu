#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"
#include "kernels/cuda/conv/volume_bands.cuh"
#include "kernels/cuda/conv/volumes.h"

// Depthwise conv_dw over volumes on the matrix units. A product serves two channels: its left operand has 8 pixels of
// dy, of which a row has one channel beside zeros, in two lines of the three planes that a plane of x meets, and its
// right one as many pixels of x, in two lines and from each of three distances on. So a pair of channels has all its
// sums in a few products, and each of them is of one tap. Planes come by the copy engine while others are multiplied.

namespace plimsoll::cuda {
namespace {

using Plan = VolumeBandWeights;
constexpr int taps = Plan::taps, all_taps = taps * taps * taps, warp_pairs = Plan::warp_pairs;

struct BandWeightsMemory {
  uint8_t *x, *dy;
  RingBarriers x_ring, dy_ring;

  __device__ BandWeightsMemory(void* shared, const Plan& p) {
    x = bordered<Plan::border_bytes>(shared);
    dy = x + p.stages * p.x_stage_bytes;
    x_ring = {reinterpret_cast<Barrier*>(dy + p.dy_stages * p.dy_stage_bytes), p.stages};
    dy_ring = {x_ring.end(), p.dy_stages};
  }
  // Pixels of x behind a line meet zeros of dy alone.
  __device__ void create(const Plan& p) const {
    clear_shared(x, x_ring.first);
    if (threadIdx.x != 0) return;
    x_ring.create(p.warps);
    dy_ring.create(p.warps);
    show_barriers_to_copies();
  }
};

// By a warp: asks for planes of x, and for those of dy that they meet.
template <typename T>
__device__ void copy_planes(const BandWeightsMemory& memory, const T* x, const T* dy, const Plan& p) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  RingPlace load_x, load_dy;
  for (VolumeColumns at(p, p.x[0]); at.is_there(); at.next(p)) {
    for (int plane = at.begin - (taps - 1); plane < at.end; ++plane) {
      const int dy_plane = plane + p.pad[0];
      const auto copy = [&](uint8_t* to, Barrier* copied, const T* tensor, const int(&size)[3], int of, int line,
                            int lines, int pitch) {
        const int line_bytes = size[2] * p.pixel_bytes();
        if (lane == 0) arrive_with_copies(copied, lines * line_bytes);
        __syncwarp();
        copy_whole_lines(to, pitch, lines, tensor, at.image * size[0] + of, line, size, line_bytes,
                         is_plane_of(size, of), copied);
      };
      wait_at(memory.dy_ring.used(load_dy.stage), load_dy.parity ^ 1);
      copy(memory.dy + load_dy.stage * p.dy_stage_bytes, memory.dy_ring.copied(load_dy.stage), dy, p.dy, dy_plane,
           at.line, p.lines, p.dy_pitch);
      load_dy.advance(p.dy_stages);
      if (plane < at.begin) continue;
      wait_at(memory.x_ring.used(load_x.stage), load_x.parity ^ 1);
      copy(memory.x + load_x.stage * p.x_stage_bytes + p.zero_bytes, memory.x_ring.copied(load_x.stage), x, p.x, plane,
           at.line * p.stride - p.pad[1], p.x_lines, p.x_pitch);
      load_x.advance(p.stages);
    }
  }
}

// What a thread reads and has sums of. Of a product's rows it has the pixels of dy of one plane of taps and of the
// first or second of two lines; of its columns those of x of a line and a distance.
struct BandRoles {
  int deep, second_line, x_line, distance;
  uint32_t dy, x;  // bytes from a stage on

  __device__ BandRoles(const Plan& p, int part) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, item = lane / 4, pixel = lane % 4;
    const int line = part % p.line_parts * p.line_pairs * 2, column = part / p.line_parts * Plan::product_pixels;
    deep = min(item / 2, taps - 1), second_line = item % 2;
    x_line = item / 4, distance = min(item % 4, taps - 1);
    dy = (line + second_line) * p.dy_pitch + (column + pixel) * p.pixel_bytes();
    x = p.zero_bytes - p.pad[2] * p.pixel_bytes() + (line * p.stride + x_line) * p.x_pitch +
        ((column + pixel) * p.stride + distance) * p.pixel_bytes();
  }
};

// The lines of x that two lines of dy meet, two at a time.
template <int stride>
constexpr int line_products = stride + 1;
template <int stride>
using BandWeightSums = float[warp_pairs][line_products<stride>][4];

// sums += the products of a part's lines of a plane of x, from the product `first` of each line on. dy, x: of the
// thread's pixels there.
template <typename T, int stride, int line_pairs>
__device__ void add_plane(BandWeightSums<stride>& sums, uint32_t dy, uint32_t x, int first, const Plan& p) {
  constexpr uint32_t first_channel = 0xffff;
  const int step = p.column_parts * Plan::product_pixels * p.pixel_bytes(), far_dy = 4 * p.pixel_bytes(),
            far_x = far_dy * stride;
  using Pixels = uint32_t[warp_pairs][2];
  const auto load = [](Pixels& pixels, uint32_t from, int far) {
#pragma unroll
    for (int pair = 0; pair < warp_pairs; ++pair)
#pragma unroll
      for (int i = 0; i < 2; ++i) pixels[pair][i] = load_pair(from + i * far + pair * 4);
  };
#pragma unroll 1
  for (int column = first; column < p.column_products; column += p.column_parts, dy += step, x += step * stride) {
    Pixels of_x;
    load(of_x, x, far_x);
#pragma unroll
    for (int lines = 0; lines < line_pairs; ++lines) {
      Pixels of_dy;
      load(of_dy, dy + 2 * lines * p.dy_pitch, far_dy);
      LeftFragment left[warp_pairs];
#pragma unroll
      for (int pair = 0; pair < warp_pairs; ++pair)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          left[pair].at[i] = of_dy[pair][i / 2] & (i % 2 == 0 ? first_channel : ~first_channel);
#pragma unroll
      for (int product = 0; product < line_products<stride>; ++product) {
        if (product > 0) load(of_x, x + (2 * lines * stride + 2 * product) * p.x_pitch, far_x);
#pragma unroll
        for (int pair = 0; pair < warp_pairs; ++pair) {
          const RightFragments right{{of_x[pair][0], of_x[pair][1], 0, 0}};
          multiply_add<T>(sums[pair][product], left[pair], right, 0);
        }
      }
    }
  }
}

template <typename T, int stride, int line_pairs>
__device__ void add_planes(BandWeightSums<stride>& sums, const BandWeightsMemory& memory, const BandRoles& roles,
                           int part, int first_pair, const Plan& p) {
  const uint32_t all_x = shared_address(memory.x) + roles.x + first_pair * 4,
                 all_dy = shared_address(memory.dy) + roles.dy + first_pair * 4;
  RingPlace load_x, load_dy, oldest;
  const auto pass_dy = [&] {
    arrive_as_warp_at(memory.dy_ring.used(oldest.stage));
    oldest.advance(p.dy_stages);
  };
  for (VolumeColumns at(p, p.x[0]); at.is_there(); at.next(p)) {
    for (int i = 0; i < taps - 1; ++i) {
      wait_at(memory.dy_ring.copied(load_dy.stage), load_dy.parity);
      load_dy.advance(p.dy_stages);
    }
#pragma unroll 1
    for (int plane = at.begin; plane < at.end; ++plane) {
      wait_at(memory.dy_ring.copied(load_dy.stage), load_dy.parity);
      wait_at(memory.x_ring.copied(load_x.stage), load_x.parity);
      const int stage = load_dy.stage - roles.deep, own = stage < 0 ? stage + p.dy_stages : stage;
      add_plane<T, stride, line_pairs>(sums, all_dy + own * p.dy_stage_bytes, all_x + load_x.stage * p.x_stage_bytes,
                                       part / p.line_parts, p);
      arrive_as_warp_at(memory.x_ring.used(load_x.stage));
      load_x.advance(p.stages);
      load_dy.advance(p.dy_stages);
      pass_dy();
    }
    for (int i = 0; i < taps - 1; ++i) pass_dy();
  }
}

template <typename T, int stride, int line_pairs>
__global__ void __launch_bounds__(Plan::most_threads, 1)
    volume_bands_dw_kernel(float* __restrict__ partial, const T* x, const T* dy, const __grid_constant__ Plan p) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ uint8_t shared[];
    const BandWeightsMemory memory(shared, p);
    auto* const all = reinterpret_cast<float*>(memory.x);  // in the end sums of each part and line of dy
    memory.create(p);
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads;
    BandWeightSums<stride> sums = {};
    const int part = warp % p.parts(), first_pair = warp / p.parts() * warp_pairs;
    const BandRoles roles(p, part);
    if (warp < p.warps)
      add_planes<T, stride, line_pairs>(sums, memory, roles, part, first_pair, p);
    else if (warp == p.warps)
      copy_planes(memory, x, dy, p);
    __syncthreads();
    const int item = thread % warp_threads / 4, column = thread % 4 * 2;
    if (warp < p.warps && item / 2 < taps)
#pragma unroll
      for (int pair = 0; pair < warp_pairs; ++pair)
#pragma unroll
        for (int product = 0; product < line_products<stride>; ++product)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int of = column + i % 2, down = 2 * product + of / 4 - stride * roles.second_line, across = of % 4;
            const int channel = 2 * (first_pair + pair) + i / 2;
            if (channel < p.block_channels && down >= 0 && down < taps && across < taps)
              all[((part * 2 + roles.second_line) * p.block_channels + channel) * all_taps +
                  (roles.deep * taps + down) * taps + across] = sums[pair][product][i];
          }
    __syncthreads();
    const int channel = first_channel(p), split = static_cast<int>(blockIdx.x) / p.channel_blocks;
    const int count = min(p.block_channels, p.channels - channel) * all_taps;
    for (int i = thread; i < count; i += static_cast<int>(blockDim.x)) {
      float total = 0;
      for (int of_part = 0; of_part < 2 * p.parts(); ++of_part) total += all[of_part * p.block_channels * all_taps + i];
      partial[(int64_t{split} * p.channels + channel) * all_taps + i] = total;
    }
  } else {
    __trap();
  }
}

}  // namespace

cudaError_t volume_bands_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                            const DepthwiseVolumeSizes& sizes, void* workspace, cudaStream_t stream) {
  const Plan p(sizes);
  auto* partial = static_cast<float*>(workspace);
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto run = [&](auto kernel) {
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), static_cast<unsigned>(p.threads()), bytes, stream>>>(
          partial, static_cast<const T*>(x), static_cast<const T*>(dy), p);
      return cudaGetLastError();
    };
    const cudaError_t error =
        p.stride == 1 ? p.line_pairs == 2 ? run(volume_bands_dw_kernel<T, 1, 2>) : run(volume_bands_dw_kernel<T, 1, 1>)
        : p.line_pairs == 2 ? run(volume_bands_dw_kernel<T, 2, 2>)
                            : run(volume_bands_dw_kernel<T, 2, 1>);
    if (error != cudaSuccess) return error;
    return sum_parts(to, dw, partial, p.splits, sizes.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
