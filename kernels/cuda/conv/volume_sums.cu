#include "kernels/cuda/common/volume_boxes.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"
#include "kernels/cuda/conv/volumes.h"
#include "kernels/cuda/matmul/tile_ring.cuh"

// Serves conv_dw ("warpgroup_volumes"): weight gradients of 3 x 3 x 3 convolutions of volumes. One thread asks the copy
// engine for boxes of x with the lines and pixels around them, and for the planes of dy that their taps in depth reach.
// Voxels are the terms of a product and lie as they are copied: rows of a product are channels of x under a tap across
// and down, its columns 32 channels of three planes of dy. Sums of all taps stay in registers until the end. Parts of
// the boxes leave sums of their own, which a second launch adds in a fixed order.

namespace plimsoll::cuda {
namespace {

using Sums = VolumeSums;

constexpr int sums_threads = Sums::groups * warpgroup_threads, sum_tiles = Sums::columns / 8;
constexpr int dy_pixel_bytes = Sums::y_channels * 2;

struct SumsShared {
  uint8_t* stages;
  Barrier *there, *read;

  __device__ SumsShared(void* shared, const Sums& p) : stages(first_tile_border(shared)) {
    there = reinterpret_cast<Barrier*>(stages + Sums::stages * Sums::stage_bytes);
    read = there + Sums::stages;
  }
  __device__ void create(int readers) const {
    for (int i = 0; i < Sums::stages; ++i) {
      set_up_barrier(there + i, 1);
      set_up_barrier(read + i, readers);
    }
    show_barriers_to_copies();
  }
};

struct SumsBlock {
  int x_channel, y_channel, part;
  int64_t begin, end;  // boxes

  __device__ explicit SumsBlock(const Sums& p) {
    const int tiles = p.x_tiles() * p.y_tiles(), tile = static_cast<int>(blockIdx.x) % tiles;
    part = static_cast<int>(blockIdx.x) / tiles;
    x_channel = tile % p.x_tiles() * Sums::x_channels;
    y_channel = tile / p.x_tiles() * Sums::y_channels;
    begin = p.boxes() * part / p.parts;
    end = p.boxes() * (part + 1) / p.parts;
  }
};

// By one thread.
__device__ inline void copy_boxes(const SumsShared& shared, const CUtensorMap& x, const CUtensorMap& dy, const Sums& p,
                                  const SumsBlock& mine, int64_t box) {
  const VolumeSizes& c = p.sizes;
  const int turn = static_cast<int>(box - mine.begin), stage = turn % Sums::stages;
  int64_t index = box;
  const int across = static_cast<int>(index % p.across()) * Sums::box_across;
  index /= p.across();
  const int down = static_cast<int>(index % p.down()) * Sums::box_down;
  index /= p.down();
  const int depth = static_cast<int>(index % p.deep()) * Sums::depth, batch = static_cast<int>(index / p.deep());
  Barrier* there = shared.there + stage;
  wait_at(shared.read + stage, static_cast<uint32_t>(turn / Sums::stages % 2) ^ 1);
  arrive_with_copies(there, Sums::x_copied + Sums::y_bytes);
  uint8_t* to = shared.stages + stage * Sums::stage_bytes;
  copy_box(to, x, VolumePlace{mine.x_channel, across - c.pad[2], down - c.pad[1], depth, batch}, there);
  // The voxel of dy that a voxel of x meets under the last tap is the first one.
  copy_box(to + Sums::x_bytes, dy,
           VolumePlace{mine.y_channel, across, down, depth + c.pad[0] - (VolumeSizes::kernel - 1), batch}, there);
}

// The first `count` products of a warpgroup.
template <typename T, int count>
__device__ __forceinline__ void multiply_boxes(float (&sums)[Sums::group_products][sum_tiles][4],
                                               const SumsShared& shared, const CUtensorMap& of_x,
                                               const CUtensorMap& of_dy, const Sums& p, const SumsBlock& mine,
                                               int group) {
  constexpr uint64_t unit = 16;
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  constexpr uint32_t line_bytes = Sums::line_bytes;
  const auto tap_at = [&](int tap) {
    return static_cast<uint32_t>(tap / VolumeSizes::kernel) * line_bytes +
           static_cast<uint32_t>(tap % VolumeSizes::kernel * Sums::pixel_bytes);
  };
  // From the operand of the first tap to those of each product. A warpgroup has pairs of taps, of
  // which the last one has the same tap twice: its second sums are left there.
  const int first_tap = group * Sums::group_products * Sums::halves;
  uint64_t behind[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int tap = first_tap + i * Sums::halves;
    behind[i] = (tap_at(tap) - tap_at(first_tap)) / unit |
                static_cast<uint64_t>((tap_at(min(tap + 1, VolumeSizes::plane_taps - 1)) - tap_at(tap)) / unit) << 16;
  }
  RingPlace place;
  for (int64_t box = mine.begin; box < mine.end; ++box, place.advance(Sums::stages)) {
    wait_at(shared.there + place.stage, place.parity);
    uint32_t x = shared_address(shared.stages) + static_cast<uint32_t>(place.stage * Sums::stage_bytes);
    uint32_t dy = x + static_cast<uint32_t>(Sums::x_bytes);
    x += tap_at(first_tap);
#pragma unroll 1
    for (int plane = 0; plane < Sums::depth; ++plane, x += 2 * line_bytes) {
#pragma unroll 1
      for (int line = 0; line < Sums::box_down; ++line, x += line_bytes, dy += Sums::box_across * dy_pixel_bytes) {
        const uint64_t left = shared_pixels<Sums::pixel_bytes>(x, 8 * Sums::pixel_bytes),
                       right = shared_pixels<dy_pixel_bytes>(dy, 8 * dy_pixel_bytes, Sums::plane_bytes);
        begin_products();
#pragma unroll
        for (int i = 0; i < count; ++i) start_wide_product<T, true, true, sum_tiles>(sums[i], left + behind[i], right);
        commit_products();
        wait_for_products<1>();
      }
      // The next box is asked for where the other warpgroups are likely to be through with the one before.
      if (plane == 0 && threadIdx.x == 0 && box + 1 < mine.end) copy_boxes(shared, of_x, of_dy, p, mine, box + 1);
      __syncwarp();
    }
    wait_for_products<0>();
    if (announces) arrive_at(shared.read + place.stage);
  }
#pragma unroll
  for (int i = 0; i < count; ++i) settle(sums[i]);
}

template <typename T>
__global__ void __launch_bounds__(sums_threads, 1)
    volume_sums_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap dy,
                       const __grid_constant__ Sums p, float* partial) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint8_t memory[];
    const SumsShared shared(memory, p);
    const SumsBlock mine(p);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) shared.create(Sums::groups);
    __syncthreads();
    if (thread == 0 && mine.begin < mine.end) copy_boxes(shared, x, dy, p, mine, mine.begin);
    __syncwarp();
    float sums[Sums::group_products][sum_tiles][4] = {};
    const int group = __shfl_sync(whole_warp, thread / warpgroup_threads, 0);
    constexpr int of_last = Sums::products - (Sums::groups - 1) * Sums::group_products;
    if (of_last == Sums::group_products || group < Sums::groups - 1)
      multiply_boxes<T, Sums::group_products>(sums, shared, x, dy, p, mine, group);
    else
      multiply_boxes<T, of_last>(sums, shared, x, dy, p, mine, group);
    const VolumeSizes& c = p.sizes;
    const int lane = thread % warp_threads, row = thread % warpgroup_threads / warp_threads * 16 + lane / 4;
    float* const to = partial + mine.part * c.weights();
#pragma unroll
    for (int i = 0; i < Sums::group_products; ++i)
#pragma unroll
      for (int t = 0; t < sum_tiles; ++t)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int of_row = row + j / 2 * 8, column = t * 8 + lane % 4 * 2 + j % 2;
          const int tap = (group * Sums::group_products + i) * Sums::halves + of_row / Sums::x_channels,
                    depth = VolumeSizes::kernel - 1 - column / Sums::y_channels;
          const int from = mine.x_channel + of_row % Sums::x_channels, at = mine.y_channel + column % Sums::y_channels;
          if (tap < VolumeSizes::plane_taps && from < c.x_channels && at < c.y_channels)
            to[(int64_t{at} * VolumeSizes::taps + depth * VolumeSizes::plane_taps + tap) * c.x_channels + from] =
                sums[i][t][j];
        }
  } else {
    __trap();
  }
}

template <typename T>
cudaError_t launch(const void* x, const void* dy, const Sums& p, float* workspace, cudaStream_t stream) {
  const VolumeSizes& c = p.sizes;
  CUtensorMap of_x, of_dy;
  if (const cudaError_t error = map_volume(of_x, x,
                                           {c.batch,
                                            {c.x[0], c.x[1], c.x[2]},
                                            c.x_channels,
                                            {Sums::depth, Sums::lines, Sums::line_pixels},
                                            Sums::x_channels}))
    return error;
  if (const cudaError_t error = map_volume(of_dy, dy,
                                           {c.batch,
                                            {c.y[0], c.y[1], c.y[2]},
                                            c.y_channels,
                                            {Sums::depth + VolumeSizes::kernel - 1, Sums::box_down, Sums::box_across},
                                            Sums::y_channels}))
    return error;
  const auto kernel = volume_sums_kernel<T>;
  const auto bytes = static_cast<size_t>(Sums::shared_bytes);
  if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
  kernel<<<static_cast<unsigned>(p.blocks()), sums_threads, bytes, stream>>>(of_x, of_dy, p, workspace);
  return cudaGetLastError();
}

}  // namespace

cudaError_t volume_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy, const Sums& p, float* workspace,
                      cudaStream_t stream) {
  const cudaError_t error = with_16_bits(type, [&]<typename T>(T*) { return launch<T>(x, dy, p, workspace, stream); });
  return error != cudaSuccess ? error : sum_parts(to, dw, workspace, p.parts, p.sizes.weights(), stream);
}

}  // namespace plimsoll::cuda
