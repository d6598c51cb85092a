#pragma once

// What the warps of a block do for a weight gradient: one asks the copying unit for tiles, two or three warpgroups
// multiply them, and three more warps sum columns of dy. They meet at the barriers of a ring of stages.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/warpgroup_wide.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"
#include "kernels/cuda/matmul/weight_gradient.h"

namespace plimsoll::cuda {

inline constexpr int gradient_step = WeightGradientTiles::step, box_columns = box_depth;
inline constexpr int row_bytes = box_columns * 2, box_bytes = gradient_step * row_bytes;
inline constexpr int summing_warps = 3;

// `groups` warpgroups make 64 rows each. A stage holds the boxes of left, then those of right.
template <int groups_, int columns_>
struct GradientTile {
  static constexpr int groups = groups_, rows = groups * warpgroup_rows, columns = columns_;
  static constexpr int left_boxes = groups, right_boxes = divide_up(columns, box_columns),
                       boxes = left_boxes + right_boxes;
  static constexpr int stage_bytes = boxes * box_bytes, stages = boxes == 4 ? 6 : 4;
  static constexpr int readers = groups + summing_warps;
  static constexpr int computing_threads = groups * warpgroup_threads, threads = computing_threads + warpgroup_threads;
  // Of the 512 that four threads, one of each warpgroup, have together; the copying warpgroup takes what is left.
  static constexpr int computing_registers = groups == 3 ? 152 : 216, other_registers = groups == 3 ? 56 : 72;
  static constexpr int product_tiles = columns / 8, words = product_tiles * computing_threads;
  static constexpr int shared_bytes = ring_bytes<stages, stage_bytes>;
};

// What a block does: a tile of dw and the steps of its part.
struct BlockWork {
  int part, tile, tile_row, tile_column, first_step, end_step;

  __device__ explicit BlockWork(const WeightGradientTiles& t) {
    const int tiles = static_cast<int>(t.tiles()), down = static_cast<int>(t.down());
    part = static_cast<int>(blockIdx.x) / tiles;
    tile = static_cast<int>(blockIdx.x) % tiles;
    tile_row = tile % down;
    tile_column = tile / down;
    first_step = static_cast<int>(t.steps() * part / t.parts);
    end_step = static_cast<int>(t.steps() * (part + 1) / t.parts);
  }
};

// Boxes past the last column are not copied, since the copy engine fills one with zeros as slowly as it copies another.
// What lies there goes to no element of dw.
template <typename Tile>
__device__ void copy_tiles(const Ring<Tile>& ring, const BlockWork& work, const WeightGradientTiles& t,
                           const CUtensorMap& left, const CUtensorMap& right) {
  const int first_left = work.tile_row * Tile::rows, first_right = work.tile_column * Tile::columns;
  const auto boxes_of = [](int64_t columns, int most) {
    return static_cast<int>(std::min<int64_t>(divide_up(columns, box_columns), most));
  };
  const int left_boxes = boxes_of(t.sizes.rows - first_left, Tile::left_boxes),
            right_boxes = boxes_of(t.sizes.columns - first_right, Tile::right_boxes);
  StagePlace<Tile::stages> place;
  for (int k = work.first_step; k < work.end_step; ++k, place.advance()) {
    Barrier* full = ring.full + place.stage;
    wait_at(ring.empty + place.stage, place.parity ^ 1);
    arrive_with_copies(full, (left_boxes + right_boxes) * box_bytes);
    uint8_t *to_left = ring.at(place.stage), *to_right = to_left + Tile::left_boxes * box_bytes;
    for (int box = 0; box < left_boxes; ++box)
      copy_box(to_left + box * box_bytes, left, first_left + box * box_columns, k * gradient_step, full);
    for (int box = 0; box < right_boxes; ++box)
      copy_box(to_right + box * box_bytes, right, first_right + box * box_columns, k * gradient_step, full);
  }
}

// Each of the three warps sums the columns of every third box of dy; a half of the warp takes the even rows, the other
// one the odd rows, and a thread four columns.
template <typename Tile, typename T>
__device__ void sum_columns(const Ring<Tile>& ring, const BlockWork& work, const WeightGradientTiles& t, int warp,
                            float* partials) {
  constexpr int most_boxes = std::max(Tile::left_boxes, Tile::right_boxes);
  constexpr int box_turns = divide_up(most_boxes, summing_warps), thread_columns = 4;
  constexpr int threads = box_columns / thread_columns;  // that a row of a box takes
  const bool left = t.sizes.left_is_dy;
  const int boxes = left ? Tile::left_boxes : Tile::right_boxes, first_box = left ? 0 : Tile::left_boxes;
  const int shares = static_cast<int>(t.bias_shares()), share = left ? work.tile_column : work.tile_row;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, half = lane / threads, at = lane % threads;
  float sums[box_turns][thread_columns] = {};
  StagePlace<Tile::stages> place;
  for (int k = work.first_step; k < work.end_step; ++k, place.advance()) {
    wait_at(ring.full + place.stage, place.parity);
    if (k % shares == share) {
#pragma unroll
      for (int turn = 0; turn < box_turns; ++turn) {
        const int box = warp + turn * summing_warps;
        if (box >= boxes) continue;
        const uint8_t* rows = ring.at(place.stage) + (first_box + box) * box_bytes;
#pragma unroll 8
        for (int row = half; row < gradient_step; row += 2) {
          const uint8_t* from = rows + row * row_bytes + (at / 2 ^ row % 8) * 16 + at % 2 * 8;
          const Packed<T, thread_columns> four = load_packed<thread_columns>(reinterpret_cast<const T*>(from));
#pragma unroll
          for (int i = 0; i < thread_columns; ++i) sums[turn][i] += four[i];
        }
      }
    }
    arrive_as_warp_at(ring.empty + place.stage);
  }
  const int length = static_cast<int>(t.sizes.bias_elements());
  const int first = left ? work.tile_row * Tile::rows : work.tile_column * Tile::columns;
  const int end = min(length, first + (left ? Tile::rows : Tile::columns));
  float* to = partials + (int64_t{work.part} * shares + share) * length;
#pragma unroll
  for (int turn = 0; turn < box_turns; ++turn) {
    const int box = warp + turn * summing_warps, column = first + box * box_columns + at * thread_columns;
    Vector<float, thread_columns> total;
#pragma unroll
    for (int i = 0; i < thread_columns; ++i)
      total.at[i] = sums[turn][i] + __shfl_down_sync(whole_warp, sums[turn][i], threads);
    if (half == 0 && box < boxes && column < end) store_vector(to + column, total);
  }
}

template <typename Tile, typename T>
__device__ void multiply(const Ring<Tile>& ring, const BlockWork& work, float (&sums)[Tile::product_tiles][4]) {
  const int group = static_cast<int>(threadIdx.x) / warpgroup_threads;
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  StagePlace<Tile::stages> place;
  int before = -1;  // the stage whose products may still be under way
#pragma unroll 4
  for (int k = work.first_step; k < work.end_step; ++k, place.advance()) {
    wait_at(ring.full + place.stage, place.parity);
    const uint8_t* from = ring.at(place.stage);
    constexpr uint64_t sixteen_rows = 16 * row_bytes >> 4;
    const uint64_t left = shared_matrix(from + group * box_bytes),
                   right = shared_columns(from + Tile::left_boxes * box_bytes, box_bytes);
    begin_products();
#pragma unroll
    for (int i = 0; i < gradient_step / 16; ++i)
      start_wide_product<T, true, true, Tile::product_tiles>(sums, left + i * sixteen_rows, right + i * sixteen_rows);
    commit_products();
    wait_for_products<1>();
    if (announces && before >= 0) arrive_at(ring.empty + before);
    before = place.stage;
  }
  wait_for_products<0>();
  settle(sums);
}

}  // namespace plimsoll::cuda
