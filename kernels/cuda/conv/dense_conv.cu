#include "kernels/cuda/conv/dense.h"

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/pitched_boxes.cuh"
#include "kernels/cuda/common/warpgroup_wide.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

// Serves conv and conv_dx ("warpgroup_taps"): sums over taps of an image's pixels by that tap's weights. A block makes
// one tile after the other. One warp asks the copy engine for boxes of pixels, in which what lies outside the image is
// 0, and for weights, two warpgroups multiply them and leave rounded sums in shared memory, and while products of the
// next tile run two more warps have the copy engine store these. Taps outside the image are passed over.

namespace plimsoll::cuda {
namespace {

template <int columns_, bool gradient_>
struct DenseProductTile {
  static constexpr int columns = columns_, product_tiles = columns / 8, groups = DenseTiles::halves;
  static constexpr bool gradient = gradient_;
  static constexpr int box_bytes = DenseTiles::box_pixels * DenseTiles::row_bytes, left_bytes = groups * box_bytes;
  static constexpr int stage_bytes = left_bytes + columns * DenseTiles::row_bytes;
  static constexpr int staged_group = columns / 64 * box_bytes;
  static constexpr int computing_threads = groups * warpgroup_threads, threads = computing_threads + warpgroup_threads;
  // Of the 504 that three threads, one of each warpgroup, have together.
  static constexpr int computing_registers = 224, copying_registers = 56;
};

// Behind the ring: rounded sums that wait to be stored, boxes of 64 channels one behind the other, and barriers: of a
// group one says that they are there, and one that they have been read.
template <typename Tile>
struct DenseShared {
  uint8_t *stages, *staged;
  Barrier *full, *empty, *there, *read;
  int count;

  __device__ DenseShared(void* shared, const DenseTiles& t) : stages(first_tile_border(shared)), count(t.stages()) {
    staged = stages + count * Tile::stage_bytes;
    full = reinterpret_cast<Barrier*>(staged + Tile::groups * Tile::staged_group);
    empty = full + count;
    there = empty + count;
    read = there + Tile::groups;
  }
  __device__ void create() const {
    for (int i = 0; i < count; ++i) {
      set_up_barrier(full + i, 1);
      set_up_barrier(empty + i, Tile::groups);
    }
    for (int i = 0; i < Tile::groups; ++i) {
      set_up_barrier(there + i, warpgroup_threads / warp_threads);
      set_up_barrier(read + i, 1);
    }
    show_barriers_to_copies();
  }
};

// A tile of the result: its first channel, pixel and image, and the taps that it needs.
struct DensePlace {
  int channel, image, pixel[2], first_tap[2], taps[2];

  __device__ DensePlace(const DenseTiles& t, int index) {
    const int size[2] = {t.tile_down(), t.tile_across()};
    channel = index % t.channel_tiles() * t.columns, index /= t.channel_tiles();
    pixel[1] = index % t.across() * size[1], index /= t.across();
    pixel[0] = index % t.down() * size[0];
    image = index / t.down() * t.tile_images();
#pragma unroll
    for (int d = 0; d < 2; ++d) {
      first_tap[d] = t.axes[d].first_tap(pixel[d], size[d]);
      taps[d] = max(0, t.axes[d].end_tap(pixel[d], size[d]) - first_tap[d]);
    }
  }
  __device__ int all_taps() const { return taps[0] * taps[1]; }
};

// How far the second half of a tile is from the first: images, down, across.
struct HalfOffset {
  int images, pixels[2];
  __device__ explicit HalfOffset(const DenseTiles& t)
      : images(t.tile_images() > t.box_images ? t.box_images : 0),
        pixels{t.tile_down() > t.box[0] ? t.box[0] : 0, t.tile_across() > t.box[1] ? t.box[1] : 0} {}
};

template <typename Tile>
__device__ void copy_operands(const DenseShared<Tile>& shared, const CUtensorMap& image, const CUtensorMap& w,
                              const DenseTiles& t) {
  const HalfOffset half(t);
  const int tiles = static_cast<int>(t.tiles()), channel_steps = t.channel_steps();
  const DenseAxis &down = t.axes[0], &across = t.axes[1];
  RingPlace place;
  for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x)) {
    const DensePlace tile(t, index);
    for (int tap = 0; tap < tile.all_taps(); ++tap) {
      const int tap_down = tile.first_tap[0] + tap / tile.taps[1], tap_across = tile.first_tap[1] + tap % tile.taps[1];
      const int row = down.first_of(tile.pixel[0], tap_down), column = across.first_of(tile.pixel[1], tap_across);
      const int of_w = tap_down * across.taps + tap_across;
      for (int k = 0; k < channel_steps; ++k, place.advance(shared.count)) {
        Barrier* full = shared.full + place.stage;
        wait_at(shared.empty + place.stage, place.parity ^ 1);
        arrive_with_copies(full, Tile::stage_bytes);
        uint8_t* to = shared.stages + place.stage * Tile::stage_bytes;
        const int channel = k * DenseTiles::step_channels;
        copy_box(to, image, channel, column, row, tile.image, full);
        copy_box(to + Tile::box_bytes, image, channel, column + half.pixels[1] * across.stride,
                 row + half.pixels[0] * down.stride, tile.image + half.images, full);
        to += Tile::left_bytes;
        if constexpr (Tile::gradient) {
#pragma unroll
          for (int box = 0; box < Tile::columns / 64; ++box)
            copy_box(to + box * Tile::box_bytes, w, tile.channel + box * 64, of_w, channel, full);
        } else {
          copy_box(to, w, channel, of_w, tile.channel, full);
        }
      }
    }
  }
}

template <typename T, typename Tile>
__device__ void multiply_tiles(const DenseShared<Tile>& shared, const DenseTiles& t, const T* bias) {
  constexpr uint64_t left_apart = 16 * 2 >> 4,
                     right_apart = (Tile::gradient ? 16 * DenseTiles::row_bytes : 16 * 2) >> 4;
  const int group = static_cast<int>(threadIdx.x) / warpgroup_threads;
  const int warp = static_cast<int>(threadIdx.x) % warpgroup_threads / warp_threads;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  // Lane 8 m + i says where row i of 8 x 8 matrix m goes: two of them are below each other, two beside each other.
  uint8_t* to = shared.staged + group * Tile::staged_group + (warp * 16 + lane / 8 % 2 * 8 + lane % 8) * 128;
  const int change = (lane / 16 ^ lane % 8) * 16;
  const int tiles = static_cast<int>(t.tiles()), channel_steps = t.channel_steps();
  RingPlace place;
  uint32_t parity = 1;
  for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x), parity ^= 1) {
    const DensePlace tile(t, index);
    const int steps = tile.all_taps() * channel_steps;
    float sums[Tile::product_tiles][4] = {};
    int before = -1;  // the stage whose products may still be under way
    for (int k = 0; k < steps; ++k, place.advance(shared.count)) {
      wait_at(shared.full + place.stage, place.parity);
      const uint8_t* from = shared.stages + place.stage * Tile::stage_bytes;
      const uint64_t left = shared_matrix(from + group * Tile::box_bytes),
                     right = Tile::gradient ? shared_columns(from + Tile::left_bytes, Tile::box_bytes)
                                            : shared_matrix(from + Tile::left_bytes);
      begin_products();
#pragma unroll
      for (int i = 0; i < DenseTiles::step_channels / 16; ++i)
        if constexpr (Tile::product_tiles > 8)
          start_wide_product<T, false, Tile::gradient, Tile::product_tiles>(sums, left + i * left_apart,
                                                                            right + i * right_apart);
        else
          start_product<T>(sums, left + i * left_apart, right + i * right_apart, true);
      commit_products();
      wait_for_products<1>();
      if (announces && before >= 0) arrive_at(shared.empty + before);
      before = place.stage;
    }
    wait_for_products<0>();
    settle(sums);
    if (announces && before >= 0) arrive_at(shared.empty + before);
    wait_at(shared.read + group, parity);
#pragma unroll
    for (int i = 0; i < Tile::product_tiles; i += 2) {
      if (bias) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int channel = tile.channel + (i + j) * 8 + lane % 4 * 2;
          if (channel >= t.out_channels) continue;
          const Packed<T, 2> two = load_packed<2>(bias + channel);
          sums[i + j][0] += two[0], sums[i + j][1] += two[1], sums[i + j][2] += two[0], sums[i + j][3] += two[1];
        }
      }
      const uint32_t words[4] = {packed_pair<T>(sums[i][0], sums[i][1]), packed_pair<T>(sums[i][2], sums[i][3]),
                                 packed_pair<T>(sums[i + 1][0], sums[i + 1][1]),
                                 packed_pair<T>(sums[i + 1][2], sums[i + 1][3])};
      store_matrices(to + i / 8 * Tile::box_bytes + (i % 8 * 16 ^ change), words);
    }
    show_to_matrix_units();
    arrive_as_warp_at(shared.there + group);
  }
}

// By one thread for each group.
template <typename Tile>
__device__ void store_tiles(const DenseShared<Tile>& shared, const DenseTiles& t, const CUtensorMap& y, int group) {
  const HalfOffset half(t);
  const uint8_t* from = shared.staged + group * Tile::staged_group;
  const int tiles = static_cast<int>(t.tiles());
  uint32_t parity = 0;
  for (int index = static_cast<int>(blockIdx.x); index < tiles; index += static_cast<int>(gridDim.x), parity ^= 1) {
    const DensePlace tile(t, index);
    const int row = tile.pixel[0] + group * half.pixels[0], column = tile.pixel[1] + group * half.pixels[1],
              image = tile.image + group * half.images;
    wait_at(shared.there + group, parity);
    if (row < t.axes[0].out && column < t.axes[1].out && image < t.batch)
#pragma unroll
      for (int box = 0; box < Tile::columns / 64; ++box)
        if (const int channel = tile.channel + box * 64; channel < t.out_channels)
          store_box(from + box * Tile::box_bytes, y, channel, column, row, image);
    wait_for_stored_boxes();
    arrive_at(shared.read + group);
  }
}

template <typename T, typename Tile>
__device__ void make_tiles(const CUtensorMap& image, const CUtensorMap& w, const CUtensorMap& y, const DenseTiles& t,
                           const T* bias) {
  extern __shared__ uint8_t memory[];
  const DenseShared<Tile> shared(memory, t);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) shared.create();
  if (thread == Tile::computing_threads) {
    fetch_map(image);
    fetch_map(w);
    fetch_map(y);
  }
  __syncthreads();
  if (thread >= Tile::computing_threads) {
    give_registers<Tile::copying_registers>();
    const int warp = (thread - Tile::computing_threads) / warp_threads;
    if (thread % warp_threads != 0) return;
    if (warp < Tile::groups)
      store_tiles(shared, t, y, warp);
    else if (warp == Tile::groups)
      copy_operands(shared, image, w, t);
  } else {
    take_registers<Tile::computing_registers>();
    multiply_tiles<T>(shared, t, bias);
  }
}

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    dense_kernel(const __grid_constant__ CUtensorMap image, const __grid_constant__ CUtensorMap w,
                 const __grid_constant__ CUtensorMap y, const __grid_constant__ DenseTiles t, const T* bias) {
  if constexpr (has_warpgroups)
    make_tiles<T, Tile>(image, w, y, t, bias);
  else
    __trap();
}

// Images and weights in boxes of 64 channels.
struct DenseMaps {
  CUtensorMap image, w, y;
};
cudaError_t map_operands(DenseMaps& maps, const DenseTiles& t, const void* image, const void* w, void* y,
                         const DensePitches& pitches) {
  const DenseAxis &down = t.axes[0], &across = t.axes[1];
  const ImageBoxes in{
      {t.batch, down.in, across.in, t.in_channels}, {t.box_images, t.box[0], t.box[1]}, {down.stride, across.stride}};
  const ImageBoxes out{{t.batch, down.out, across.out, t.out_channels}, {t.box_images, t.box[0], t.box[1]}, {1, 1}};
  if (const cudaError_t error = map_image(maps.image, image, in, pitches.x); error != cudaSuccess) return error;
  if (const cudaError_t error = map_image(maps.y, y, out, pitches.y); error != cudaSuccess) return error;
  const int taps = down.taps * across.taps;
  return t.gradient ? map_taps(maps.w, w, t.in_channels, taps, t.out_channels, DenseTiles::step_channels)
                    : map_taps(maps.w, w, t.out_channels, taps, t.in_channels, t.columns);
}

template <typename T, typename Tile>
cudaError_t launch(const DenseMaps& maps, const DenseTiles& t, const T* bias, int multiprocessors,
                   cudaStream_t stream) {
  const auto kernel = dense_kernel<T, Tile>;
  const auto bytes = static_cast<size_t>(t.shared_bytes());
  if (const cudaError_t error = allow_shared(kernel, bytes); error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(t.tiles(), multiprocessors));
  kernel<<<blocks, Tile::threads, bytes, stream>>>(maps.image, maps.w, maps.y, t, bias);
  return cudaGetLastError();
}

}  // namespace

cudaError_t dense_convolution(Scalar type, void* y, const void* image, const void* w, const void* bias,
                              const DenseTiles& t, int multiprocessors, cudaStream_t stream,
                              const DensePitches& pitches) {
  DenseMaps maps;
  if (const cudaError_t error = map_operands(maps, t, image, w, y, pitches); error != cudaSuccess) return error;
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto launch_tile = [&]<typename Tile>(Tile*) {
      return launch<T, Tile>(maps, t, static_cast<const T*>(bias), multiprocessors, stream);
    };
    const auto with_columns = [&]<bool gradient>(std::bool_constant<gradient>) {
      return t.columns == 256 ? launch_tile(static_cast<DenseProductTile<256, gradient>*>(nullptr))
                              : launch_tile(static_cast<DenseProductTile<128, gradient>*>(nullptr));
    };
    if (t.columns == 64) return launch_tile(static_cast<DenseProductTile<64, false>*>(nullptr));
    return t.gradient ? with_columns(std::true_type()) : with_columns(std::false_type());
  });
}

}  // namespace plimsoll::cuda
