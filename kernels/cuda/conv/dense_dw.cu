#include "kernels/cuda/conv/dense.h"

#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/pitched_boxes.cuh"
#include "kernels/cuda/common/warpgroup_wide.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

#include <iterator>

// Serves conv_dw ("warpgroup_taps"): dw = dy^T x for every tap, pixels being rows of both. One warp asks the copy
// engine for boxes of pixels, in which what lies outside an image is 0, and warpgroups multiply them as they lie.
// Neighbouring taps read the same box, some rows apart, so that three taps of 64 channels cost one copy. Boxes that are
// outside x for all taps of a tile are passed over. Partial sums are added in a fixed order by a second launch.

namespace plimsoll::cuda {
namespace {

// How a shape's work lies in threads. Columns of one tap lie side by side in a single product with those of other sets;
// of several taps each set is a product.
template <int row_groups_, int column_groups, int sets_, int taps_>
struct DenseTile {
  static constexpr int row_groups = row_groups_, sets = sets_, taps = taps_;
  static constexpr int rows = row_groups * warpgroup_rows, block_sets = column_groups * sets;
  static constexpr int groups = row_groups * column_groups, computing_threads = groups * warpgroup_threads;
  static constexpr int threads = computing_threads + warpgroup_threads;
  static constexpr bool joins_sets = taps == 1;
  static constexpr int products = joins_sets ? 1 : sets, product_tiles = 8 * (joins_sets ? sets : taps);
  static constexpr int sum_tiles = products * product_tiles, words = sum_tiles * computing_threads;
  static constexpr int box_bytes = DenseWeightTiles::step_pixels * DenseWeightTiles::row_bytes;
  // Of the 504 or 512 that one thread of each warpgroup have together.
  static_assert(groups == 2 || groups == 3);
  static constexpr int computing_registers = groups == 2 ? 232 : 152, other_registers = groups == 2 ? 40 : 56;
};

// A ring of stages, of which the launch says how many and how large.
struct DenseRing {
  uint8_t* stages;
  Barrier *full, *empty;
  int count, stage_bytes;

  __device__ DenseRing(uint8_t* first, const DenseWeightTiles& t)
      : stages(first), count(t.stages()), stage_bytes(t.stage_bytes()) {
    full = reinterpret_cast<Barrier*>(first + count * stage_bytes);
    empty = full + count;
  }

  __device__ uint8_t* at(int stage) const { return stages + stage * stage_bytes; }
  __device__ void create(int readers) const {
    for (int i = 0; i < count; ++i) {
      set_up_barrier(full + i, 1);
      set_up_barrier(empty + i, readers);
    }
    show_barriers_to_copies();
  }
};

struct DenseWork {
  int part, tile_row, tile_across, first_step, end_step;
  PixelRange down, across;

  __device__ explicit DenseWork(const DenseWeightTiles& t) {
    const int tiles = t.tiles(), tile = static_cast<int>(blockIdx.x) % tiles;
    part = static_cast<int>(blockIdx.x) / tiles;
    tile_row = tile % t.down();
    tile_across = tile / t.down();
    down = t.pixels_of(0, tile_across);
    across = t.pixels_of(1, tile_across);
    const int64_t steps = t.steps_of(tile_across);
    first_step = static_cast<int>(steps * part / t.parts);
    end_step = static_cast<int>(steps * (part + 1) / t.parts);
  }
};

template <typename Tile>
__device__ void copy_boxes(const DenseRing& ring, const DenseWork& work, const CUtensorMap& x, const CUtensorMap& dy,
                           const DenseWeightTiles& t) {
  constexpr int sets = Tile::block_sets, step_pixels = DenseWeightTiles::step_pixels;
  const ConvolutionSizes& c = t.c;
  int channel[sets], down[sets], across[sets];
#pragma unroll
  for (int i = 0; i < sets; ++i) {
    const int index = work.tile_across * sets + i;
    const DenseSet set = t.set(index);
    // Channels behind the last are zeros that nothing is read for.
    channel[i] = index < t.all_sets() ? set.channel : t.channel_sets() * DenseWeightTiles::set_channels;
    down[i] = set.down * c.dilation[0] - c.pad[0];
    across[i] = set.across * c.dilation[1] - c.pad[1];
  }
  const int columns = static_cast<int>(divide_up(work.across.count(), t.box[1])),
            rows = static_cast<int>(divide_up(work.down.count(), t.box[0]));
  const int set_bytes = t.set_bytes(), copied_bytes = t.copied_bytes(), first_row = work.tile_row * Tile::rows;
  int column = 0, row = 0, image = 0;
  if (work.first_step < work.end_step) {
    column = work.first_step % columns;
    row = work.first_step / columns % rows;
    image = work.first_step / columns / rows * t.box_images;
  }
  RingPlace place;
  for (int step = work.first_step; step < work.end_step; ++step, place.advance(ring.count)) {
    const int y_down = work.down.begin + row * t.box[0], y_across = work.across.begin + column * t.box[1];
    Barrier* full = ring.full + place.stage;
    wait_at(ring.empty + place.stage, place.parity ^ 1);
    arrive_with_copies(full, copied_bytes);
    uint8_t* to = ring.at(place.stage);
#pragma unroll
    for (int i = 0; i < Tile::row_groups; ++i, to += step_pixels * DenseWeightTiles::row_bytes)
      copy_box(to, dy, first_row + i * warpgroup_rows, y_across, y_down, image, full);
#pragma unroll
    for (int i = 0; i < sets; ++i, to += set_bytes)
      copy_box(to, x, channel[i], y_across * c.stride[1] + across[i], y_down * c.stride[0] + down[i], image, full);
    if (++column < columns) continue;
    column = 0;
    if (++row < rows) continue;
    row = 0;
    image += t.box_images;
  }
}

template <typename Tile, typename T>
__device__ void multiply_boxes(const DenseRing& ring, const DenseWork& work, const DenseWeightTiles& t,
                               float (&sums)[Tile::sum_tiles][4]) {
  constexpr int slices = DenseWeightTiles::step_pixels / 16;
  constexpr uint64_t row_units = DenseWeightTiles::row_bytes / 16, sixteen_rows = 16 * row_units;
  const int group = static_cast<int>(threadIdx.x) / warpgroup_threads;
  const int row_group = group % Tile::row_groups, column_group = group / Tile::row_groups;
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  const int set_bytes = t.set_bytes(), left_at = row_group * Tile::box_bytes,
            right_at = Tile::row_groups * Tile::box_bytes + column_group * Tile::sets * set_bytes;
  // Rows of x that a line of a box has behind those of dy are passed over. A product reads twice eight rows.
  const int halo = t.halo(), line_eights = Tile::taps > 1 ? t.box[1] / 8 : 2;
  const uint64_t eight_rows = (line_eights > 1 ? 8 : 8 + halo) * row_units,
                 columns_apart = Tile::joins_sets ? set_bytes / 16 : t.shift() * row_units;
  uint64_t slice_at[slices];
#pragma unroll
  for (int i = 0; i < slices; ++i) slice_at[i] = (16 * i + 2 * i / line_eights * halo) * row_units;
  RingPlace place;
  int before = -1;  // the stage whose products may still be under way
  for (int step = work.first_step; step < work.end_step; ++step, place.advance(ring.count)) {
    wait_at(ring.full + place.stage, place.parity);
    const uint8_t* from = ring.at(place.stage);
    const uint64_t left = shared_matrix(from + left_at);
    const uint64_t right = shared_lines(from + right_at, eight_rows, columns_apart);
    begin_products();
#pragma unroll
    for (int i = 0; i < slices; ++i)
#pragma unroll
      for (int set = 0; set < Tile::products; ++set)
        start_wide_product<T, true, true, Tile::product_tiles>(
            sums + set * Tile::product_tiles, left + i * sixteen_rows,
            right + slice_at[i] + static_cast<uint64_t>(set * (set_bytes / 16)));
    commit_products();
    wait_for_products<1>();
    if (announces && before >= 0) arrive_at(ring.empty + before);
    before = place.stage;
  }
  wait_for_products<0>();
  settle(sums);
}

template <typename Y>
struct DenseResult {
  Y* dw;  // [channels of y, down, across, channels of x]

  // Thread `thread` of a tile's computing threads has four sums of each product tile: two neighbours of two rows, 8
  // apart. None of them counts where this is negative.
  template <typename Tile>
  static __device__ int64_t place_of(const DenseWeightTiles& t, int tile_row, int tile_across, int thread,
                                     int sum_tile) {
    constexpr int set_tiles = Tile::taps * 8;
    const int group = thread / warpgroup_threads, row_group = group % Tile::row_groups,
              column_group = group / Tile::row_groups;
    const int row = tile_row * Tile::rows + row_group * warpgroup_rows + thread / 32 % 4 * 16 + thread % 32 / 4;
    const int index = tile_across * Tile::block_sets + column_group * Tile::sets + sum_tile / set_tiles;
    const DenseSet set = t.set(index);
    const int tap = set.across + sum_tile / 8 % Tile::taps, channel = set.channel + sum_tile % 8 * 8 + thread % 4 * 2;
    const ConvolutionSizes& c = t.c;
    if (row >= c.y_channels || index >= t.all_sets() || tap >= c.kernel[1] || channel >= c.x_channels) return -1;
    return ((int64_t{row} * c.kernel[0] + set.down) * c.kernel[1] + tap) * c.x_channels + channel;
  }
  template <typename Tile>
  __device__ void store(const DenseWeightTiles& t, int64_t place, const float (&sums)[4], int tile_row,
                        int thread) const {
    if (place < 0) return;
    const int row = tile_row * Tile::rows + thread / warpgroup_threads % Tile::row_groups * warpgroup_rows +
                    thread / 32 % 4 * 16 + thread % 32 / 4;
    store_vector(dw + place, Vector<Y, 2>{narrow<Y>(sums[0]), narrow<Y>(sums[1])});
    if (row + 8 < t.c.y_channels)
      store_vector(dw + place + int64_t{8} * t.c.taps() * t.c.x_channels,
                   Vector<Y, 2>{narrow<Y>(sums[2]), narrow<Y>(sums[3])});
  }
};

template <typename Tile, typename T, typename Y>
__device__ void work_on_tile(const CUtensorMap& x, const CUtensorMap& dy, const DenseWeightTiles& t, float* workspace,
                             const DenseResult<Y>& to) {
  extern __shared__ uint8_t shared[];
  const DenseRing ring(first_tile_border(shared), t);
  const DenseWork work(t);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) ring.create(Tile::groups);
  if (thread == Tile::computing_threads) {
    fetch_map(x);
    fetch_map(dy);
  }
  __syncthreads();
  if (thread >= Tile::computing_threads) {
    give_registers<Tile::other_registers>();
    if (thread == Tile::computing_threads) copy_boxes<Tile>(ring, work, x, dy, t);
  } else {
    take_registers<Tile::computing_registers>();
    float sums[Tile::sum_tiles][4] = {};
    multiply_boxes<Tile, T>(ring, work, t, sums);
    // Partial sums lie so that the threads of a warp store neighbours.
    float4* partial = reinterpret_cast<float4*>(workspace) + int64_t{blockIdx.x} * Tile::words + thread;
#pragma unroll
    for (int i = 0; i < Tile::sum_tiles; ++i)
      if (t.parts > 1)
        __stcg(partial + i * Tile::computing_threads, make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]));
      else
        to.template store<Tile>(t, to.template place_of<Tile>(t, work.tile_row, work.tile_across, thread, i), sums[i],
                                work.tile_row, thread);
  }
  let_next_launch_begin();
}

template <typename Tile, typename T, typename Y>
__global__ void __launch_bounds__(Tile::threads, 1)
    dense_dw_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap dy,
                    const __grid_constant__ DenseWeightTiles t, float* workspace, DenseResult<Y> to) {
  if constexpr (has_warpgroups)
    work_on_tile<Tile, T>(x, dy, t, workspace, to);
  else
    __trap();
}

constexpr int adding_threads = 256;

// Adds partial sums: of each word several threads, one a lane, take every so many-th part, and their sums are added in
// the order of lanes.
template <typename Tile, typename Y>
__global__ void __launch_bounds__(adding_threads)
    dense_combine_kernel(const float* partials, int lanes, const __grid_constant__ DenseWeightTiles t,
                         DenseResult<Y> to) {
  if constexpr (has_warpgroups) {
    __shared__ float4 of_lanes[adding_threads];
    const int words = adding_threads / lanes, lane = static_cast<int>(threadIdx.x) / words;
    const int64_t word = int64_t{blockIdx.x} * words + threadIdx.x % words;
    const int tile = static_cast<int>(word / Tile::words), at = static_cast<int>(word % Tile::words);
    const int thread = at % Tile::computing_threads, tile_row = tile % t.down();
    const int64_t place = tile >= t.tiles() ? -1
                                            : to.template place_of<Tile>(t, tile_row, tile / t.down(), thread,
                                                                         at / Tile::computing_threads);
    wait_for_launch_before();
    float sums[4] = {};
    const int64_t apart = int64_t{t.tiles()} * Tile::words;
    const float4* from = reinterpret_cast<const float4*>(partials) + word + lane * apart;
    if (place >= 0)
#pragma unroll 8
      for (int part = lane; part < t.parts; part += lanes, from += lanes * apart) {
        const float4 four = __ldcg(from);
        sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
      }
    if (lanes > 1) {
      of_lanes[threadIdx.x] = make_float4(sums[0], sums[1], sums[2], sums[3]);
      __syncthreads();
      if (lane > 0) return;
      for (int other = 1; other < lanes; ++other) {
        const float4 four = of_lanes[other * words + static_cast<int>(threadIdx.x)];
        sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
      }
    }
    to.template store<Tile>(t, place, sums, tile_row, thread);
  } else {
    __trap();
  }
}

// As many threads for a word as the chip has room for, but each has several parts.
inline int lanes_for(int64_t words, int parts) {
  constexpr int64_t threads_of_chip = 1 << 18;
  constexpr int max_lanes = 32, min_parts = 4;
  int lanes = 1;
  while (lanes < max_lanes && words * lanes < threads_of_chip && parts >= 2 * lanes * min_parts) lanes *= 2;
  return lanes;
}

template <typename Tile, typename T, typename Y>
cudaError_t launch(const CUtensorMap& x, const CUtensorMap& dy, const DenseWeightTiles& t, float* workspace, Y* dw,
                   cudaStream_t stream) {
  const DenseResult<Y> to{dw};
  const auto kernel = dense_dw_kernel<Tile, T, Y>;
  if (const cudaError_t error = allow_shared(kernel, static_cast<size_t>(t.shared_bytes())); error != cudaSuccess)
    return error;
  kernel<<<static_cast<unsigned>(t.blocks()), Tile::threads, static_cast<size_t>(t.shared_bytes()), stream>>>(
      x, dy, t, workspace, to);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess || t.parts == 1) return error;
  const int64_t words = int64_t{t.tiles()} * Tile::words;
  const int lanes = lanes_for(words, t.parts);
  return launch_early(dense_combine_kernel<Tile, Y>, blocks_for(words * lanes, adding_threads), adding_threads, stream,
                      workspace, lanes, t, to);
}

// Calls visit with a null pointer of the shape's tile.
template <size_t at = 0, typename Visit>
cudaError_t with_tile(const DenseTileShape& shape, Visit visit) {
  if constexpr (at < std::size(dense_tile_shapes)) {
    constexpr DenseTileShape s = dense_tile_shapes[at];
    if (shape == s) return visit(static_cast<DenseTile<s.row_groups, s.column_groups, s.sets, s.taps>*>(nullptr));
    return with_tile<at + 1>(shape, visit);
  } else {
    return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t dense_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy, const DenseWeightTiles& t,
                     float* workspace, cudaStream_t stream, const DensePitches& pitches) {
  const ConvolutionSizes& c = t.c;
  CUtensorMap of_x, of_dy;
  const ImageBoxes x_boxes{{c.batch, c.x[0], c.x[1], c.x_channels},
                           {t.box_images, t.box[0], t.box[1] + t.halo()},
                           {c.stride[0], c.stride[1]}};
  const ImageBoxes y_boxes{{c.batch, c.y[0], c.y[1], c.y_channels}, {t.box_images, t.box[0], t.box[1]}, {1, 1}};
  if (const cudaError_t error = map_image(of_x, x, x_boxes, pitches.x); error != cudaSuccess) return error;
  if (const cudaError_t error = map_image(of_dy, dy, y_boxes, pitches.y); error != cudaSuccess) return error;
  return with_tile(t.shape, [&]<typename Tile>(Tile*) {
    return with_16_bits(type, [&]<typename T>(T*) {
      return to == type ? launch<Tile, T>(of_x, of_dy, t, workspace, static_cast<T*>(dw), stream)
                        : launch<Tile, T>(of_x, of_dy, t, workspace, static_cast<float*>(dw), stream);
    });
  });
}

}  // namespace plimsoll::cuda
