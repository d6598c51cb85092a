#pragma once

// Products of 16-bit operands whose columns are summed on their way to memory, on Hopper's warpgroups: y = left right,
// left [rows, depth], right in rows [depth, columns] or else [columns, depth].
//
// A block stays with the same columns of y and makes tiles of 128 rows of them, one after the other. One warp asks the
// copy engine for tiles of operands, two warpgroups multiply them and leave rounded sums in shared memory, and while
// products of the next tile run one more warpgroup sums columns of these, and two warps have the copy engine store
// them. Where the block's part of right fits beside the ring it is read once and stays.
//
// Sums may depend on tensors of y's shape, which another warp asks the copy engine for. The summing warpgroup then also
// rewrites what is stored.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/warpgroup_wide.cuh"
#include "kernels/cuda/matmul/column_product_sizes.h"
#include "kernels/cuda/matmul/tile_ring.cuh"

namespace plimsoll::cuda {

template <int columns_, bool keeps_right_, bool right_in_rows_, int beside_>
struct ColumnTile {
  static constexpr int columns = columns_, beside = beside_;
  static constexpr bool keeps_right = keeps_right_, right_in_rows = right_in_rows_;
  static constexpr int groups = 2, rows = groups * warpgroup_rows, product_tiles = columns / 8, step = box_depth;
  static constexpr int box_bytes = 64 * step * 2;
  static constexpr int left_bytes = rows * step * 2, right_bytes = columns * step * 2;  // of a step
  static constexpr int stage_bytes = left_bytes + (keeps_right ? 0 : right_bytes);
  static constexpr int staged_group = columns / 64 * box_bytes, staged_bytes = groups * staged_group;
  static constexpr int unit_bytes = beside * staged_group;
  static constexpr int max_stages = ColumnTiling::max_stages, max_units = ColumnTiling::max_units;
  static constexpr int computing_threads = groups * warpgroup_threads;
  static constexpr int finishing_threads = warpgroup_threads, finishing_warps = finishing_threads / warp_threads;
  static constexpr int threads = computing_threads + finishing_threads + warpgroup_threads;
  // Of the 512 that four threads, one of each warpgroup, have together.
  static constexpr int computing_registers = 168, finishing_registers = 144, copying_registers = 32;
};

// ColumnTiling in 32 bits.
struct ColumnProduct {
  int rows, columns, steps;  // of y, and of the depth
  int down, across;          // tiles of y
  int row_blocks;            // blocks that share the same columns
  int stages, units;
};

// Behind the ring: what is kept of right, the rounded sums that wait to be finished, a box of 64 columns behind the
// other, units of tensors beside them, and barriers. Of the sums of a group one says that they are there, one that they
// have been rewritten, and one that they have been read.
template <typename Tile>
struct ColumnShared {
  static_assert((2 * Tile::max_stages + 2 * Tile::max_units + 1 + 3 * Tile::groups) * sizeof(Barrier) <=
                ColumnTiling::barrier_bytes);
  uint8_t *stages, *right, *staged, *units;
  Barrier *full, *empty;            // [stages]
  Barrier *unit_full, *unit_empty;  // [units]
  Barrier* right_there;
  Barrier *there, *rewritten, *read;  // [groups]

  __device__ ColumnShared(void* shared, const ColumnProduct& t)
      : stages(static_cast<uint8_t*>(shared) + (tile_border - shared_address(shared) % tile_border) % tile_border),
        right(stages + t.stages * Tile::stage_bytes),
        staged(right + (Tile::keeps_right ? t.steps * Tile::right_bytes : 0)),
        units(staged + Tile::staged_bytes),
        full(reinterpret_cast<Barrier*>(units + t.units * Tile::unit_bytes)),
        empty(full + Tile::max_stages),
        unit_full(empty + Tile::max_stages),
        unit_empty(unit_full + Tile::max_units),
        right_there(unit_empty + Tile::max_units),
        there(right_there + 1),
        rewritten(there + Tile::groups),
        read(rewritten + Tile::groups) {}
  __device__ void create(const ColumnProduct& t) const {
    for (int i = 0; i < t.stages; ++i) {
      set_up_barrier(full + i, 1);
      set_up_barrier(empty + i, Tile::groups);
    }
    for (int i = 0; i < t.units; ++i) {
      set_up_barrier(unit_full + i, 1);
      set_up_barrier(unit_empty + i, Tile::finishing_warps);
    }
    set_up_barrier(right_there, 1);
    for (int i = 0; i < Tile::groups; ++i) {
      set_up_barrier(there + i, warpgroup_threads / warp_threads);
      set_up_barrier(rewritten + i, Tile::finishing_warps);
      set_up_barrier(read + i, Tile::beside > 0 ? 1 : Tile::finishing_warps + 1);
    }
    show_barriers_to_copies();
  }
};

// What a block does: its columns, and every row_blocks-th tile of rows.
struct ColumnWork {
  int column, first, step;
  __device__ explicit ColumnWork(const ColumnProduct& t)
      : column(static_cast<int>(blockIdx.x) % t.across),
        first(static_cast<int>(blockIdx.x) / t.across),
        step(t.row_blocks) {}
};

// One step of the depth of the block's columns of right.
template <typename Tile>
__device__ void copy_right(uint8_t* to, const CUtensorMap& right, int step, int column, Barrier* full) {
  if constexpr (Tile::right_in_rows) {
#pragma unroll
    for (int box = 0; box < Tile::columns / box_depth; ++box)
      copy_box(to + box * Tile::box_bytes, right, column + box * box_depth, step * Tile::step, full);
  } else {
    copy_box(to, right, step * Tile::step, column, full);
  }
}

template <typename Tile>
__device__ void copy_operands(const ColumnShared<Tile>& shared, const ColumnProduct& t, const CUtensorMap& left,
                              const CUtensorMap& right) {
  const ColumnWork work(t);
  const int column = work.column * Tile::columns;
  if constexpr (Tile::keeps_right) {
    arrive_with_copies(shared.right_there, t.steps * Tile::right_bytes);
    for (int k = 0; k < t.steps; ++k)
      copy_right<Tile>(shared.right + k * Tile::right_bytes, right, k, column, shared.right_there);
  }
  RingPlace place;
  for (int row = work.first; row < t.down; row += work.step) {
    for (int k = 0; k < t.steps; ++k, place.advance(t.stages)) {
      Barrier* full = shared.full + place.stage;
      wait_at(shared.empty + place.stage, place.parity ^ 1);
      arrive_with_copies(full, Tile::stage_bytes);
      uint8_t* to = shared.stages + place.stage * Tile::stage_bytes;
      copy_box(to, left, k * Tile::step, row * Tile::rows, full);
      if constexpr (!Tile::keeps_right) copy_right<Tile>(to + Tile::left_bytes, right, k, column, full);
    }
  }
}

// Rows of a group after the other, as sums are staged: a unit has all tensors, one behind the other.
template <typename Tile>
__device__ void copy_beside(const ColumnShared<Tile>& shared, const ColumnProduct& t, const CUtensorMap* beside) {
  const ColumnWork work(t);
  const int column = work.column * Tile::columns;
  RingPlace place;
  for (int tile = work.first; tile < t.down; tile += work.step)
    for (int group = 0; group < Tile::groups; ++group, place.advance(t.units)) {
      Barrier* full = shared.unit_full + place.stage;
      wait_at(shared.unit_empty + place.stage, place.parity ^ 1);
      arrive_with_copies(full, Tile::unit_bytes);
      uint8_t* to = shared.units + place.stage * Tile::unit_bytes;
#pragma unroll
      for (int tensor = 0; tensor < Tile::beside; ++tensor)
#pragma unroll
        for (int box = 0; box < Tile::columns / box_depth; ++box, to += Tile::box_bytes)
          copy_box(to, beside[tensor], column + box * box_depth, tile * Tile::rows + group * warpgroup_rows, full);
    }
}

// One step: 64 rows of left with all columns of right. A product of 256 columns at once would need more registers than
// a thread has before it takes those of others.
template <typename T, typename Tile>
__device__ void start_step(float (&sums)[Tile::product_tiles][4], const uint8_t* left, const uint8_t* right,
                           bool adds) {
  constexpr bool in_rows = Tile::right_in_rows;
  constexpr int wide = 16, sides = Tile::product_tiles > wide ? Tile::product_tiles / wide : 1;
  constexpr uint64_t left_apart = 16 * 2 >> 4, right_apart = (in_rows ? 16 * Tile::step * 2 : 16 * 2) >> 4;
  constexpr uint64_t half_apart = Tile::columns / 2 * Tile::step * 2 >> 4;
  const uint64_t a = shared_matrix(left), b = in_rows ? shared_columns(right, Tile::box_bytes) : shared_matrix(right);
#pragma unroll
  for (int i = 0; i < Tile::step / 16; ++i)
#pragma unroll
    for (int side = 0; side < sides; ++side) {
      const uint64_t of_left = a + i * left_apart, of_right = b + side * half_apart + i * right_apart;
      if constexpr (Tile::product_tiles >= wide)
        start_wide_product<T, false, in_rows, wide>(sums + side * wide, of_left, of_right, adds || i > 0);
      else if constexpr (in_rows)
        start_rows_product<T>(sums, of_left, of_right);
      else
        start_product<T>(sums, of_left, of_right, adds || i > 0);
    }
}

// Products with 64 columns of a right operand in rows are always added.
template <int tiles>
__device__ void clear(float (&sums)[tiles][4]) {
#pragma unroll
  for (float(&tile)[4] : sums)
#pragma unroll
    for (float& sum : tile) sum = 0;
}

template <typename T, typename Tile>
__device__ void multiply_tiles(const ColumnShared<Tile>& shared, const ColumnProduct& t) {
  const int group = static_cast<int>(threadIdx.x) / warpgroup_threads;
  const int warp = static_cast<int>(threadIdx.x) % warpgroup_threads / warp_threads;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  // Lane 8 m + i says where row i of 8 x 8 matrix m goes: two of them are below each other, two beside each other.
  uint8_t* to = shared.staged + group * Tile::staged_group + (warp * 16 + lane / 8 % 2 * 8 + lane % 8) * 128;
  const int change = (lane / 16 ^ lane % 8) * 16;
  float sums[Tile::product_tiles][4];
  RingPlace place;
  uint32_t parity = 1;
  const ColumnWork work(t);
  if constexpr (Tile::keeps_right) wait_at(shared.right_there, 0);
  for (int row = work.first; row < t.down; row += work.step) {
    int before = -1;  // the stage whose products may still be under way
    if constexpr (Tile::right_in_rows && Tile::columns == 64) clear(sums);
    for (int k = 0; k < t.steps; ++k, place.advance(t.stages)) {
      wait_at(shared.full + place.stage, place.parity);
      const uint8_t* from = shared.stages + place.stage * Tile::stage_bytes;
      const uint8_t* right = Tile::keeps_right ? shared.right + k * Tile::right_bytes : from + Tile::left_bytes;
      begin_products();
      start_step<T, Tile>(sums, from + group * Tile::box_bytes, right, k > 0);
      commit_products();
      wait_for_products<1>();
      if (announces && before >= 0) arrive_at(shared.empty + before);
      before = place.stage;
    }
    wait_for_products<0>();
    settle(sums);
    if (announces) arrive_at(shared.empty + before);
    wait_at(shared.read + group, parity);
    parity ^= 1;
#pragma unroll
    for (int i = 0; i < Tile::product_tiles; i += 2) {
      const uint32_t words[4] = {packed_pair<T>(sums[i][0], sums[i][1]), packed_pair<T>(sums[i][2], sums[i][3]),
                                 packed_pair<T>(sums[i + 1][0], sums[i + 1][1]),
                                 packed_pair<T>(sums[i + 1][2], sums[i + 1][3])};
      store_matrices(to + i / 8 * Tile::box_bytes + (i % 8 * 16 ^ change), words);
    }
    show_to_matrix_units();
    arrive_as_warp_at(shared.there + group);
  }
}

// Of a matrix, and nothing outside it; see the store_box of a head's rows.
__device__ inline void store_box(const void* box, const CUtensorMap& map, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
               "r"(row), "r"(shared_address(box))
               : "memory");
}

// By one thread for each group.
template <typename Tile>
__device__ void store_tiles(const ColumnShared<Tile>& shared, const ColumnProduct& t, const CUtensorMap& y, int group) {
  const ColumnWork work(t);
  const uint8_t* from = shared.staged + group * Tile::staged_group;
  uint32_t parity = 0;
  for (int tile = work.first; tile < t.down; tile += work.step, parity ^= 1) {
    const int row = tile * Tile::rows + group * warpgroup_rows, first = work.column * Tile::columns;
    wait_at((Tile::beside > 0 ? shared.rewritten : shared.there) + group, parity);
#pragma unroll
    for (int box = 0; box < Tile::columns / box_depth; ++box)
      if (const int column = first + box * box_depth; row < t.rows && column < t.columns)
        store_box(from + box * Tile::box_bytes, y, column, row);
    wait_for_stored_boxes();
    arrive_at(shared.read + group);
  }
}

// Boxes of 64 columns: of 128 rows of left, 64 rows of right or as many as a tile has columns, and 64 rows of y and of
// the tensors beside it.
template <int beside>
struct ColumnMaps {
  CUtensorMap left, right, y;
  CUtensorMap tensors[beside > 0 ? beside : 1];
};

// Calls finish(shared) in the finishing warpgroup.
template <typename T, typename Tile, typename Finish>
__device__ void make_column_tiles(const ColumnMaps<Tile::beside>& maps, const ColumnProduct& t, Finish finish) {
  extern __shared__ uint8_t memory[];
  const ColumnShared<Tile> shared(memory, t);
  constexpr int first_finishing = Tile::computing_threads, first_copying = first_finishing + Tile::finishing_threads;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) shared.create(t);
  if (thread == first_copying) {
    fetch_map(maps.left);
    fetch_map(maps.right);
    fetch_map(maps.y);
  }
  __syncthreads();
  if (thread >= first_copying) {
    give_registers<Tile::copying_registers>();
    const int warp = (thread - first_copying) / warp_threads;
    if (thread % warp_threads != 0) return;
    if (warp < Tile::groups)
      store_tiles(shared, t, maps.y, warp);
    else if (warp == Tile::groups)
      copy_operands(shared, t, maps.left, maps.right);
    else if constexpr (Tile::beside > 0)
      copy_beside(shared, t, maps.tensors);
  } else if (thread >= first_finishing) {
    take_registers<Tile::finishing_registers>();
    finish(shared);
  } else {
    take_registers<Tile::computing_registers>();
    multiply_tiles<T>(shared, t);
  }
}

// Of the finishing warpgroup alone.
template <typename Tile>
__device__ void wait_for_finishing_threads() {
  asm volatile("bar.sync 1, %0;" ::"n"(Tile::finishing_threads) : "memory");
}

// ---- Host ----

inline ColumnProduct column_product(const ColumnTiling& tiling) {
  return {.rows = static_cast<int>(tiling.sizes.rows),
          .columns = static_cast<int>(tiling.sizes.columns),
          .steps = static_cast<int>(tiling.steps()),
          .down = static_cast<int>(tiling.down()),
          .across = static_cast<int>(tiling.across()),
          .row_blocks = static_cast<int>(tiling.row_blocks),
          .stages = static_cast<int>(tiling.stages()),
          .units = static_cast<int>(tiling.units())};
}

template <typename Tile>
cudaError_t map_operands(ColumnMaps<Tile::beside>& maps, const ColumnSizes& sizes, const void* left, const void* right,
                         void* y) {
  static_assert(Tile::rows == ColumnTiling::tile_rows && Tile::step == ColumnTiling::step &&
                warpgroup_rows == ColumnTiling::unit_rows);
  if (cudaError_t error = map_matrix(maps.left, left, sizes.rows, sizes.depth, Tile::rows); error != cudaSuccess)
    return error;
  const cudaError_t mapped = Tile::right_in_rows
                                 ? map_matrix(maps.right, right, sizes.depth, sizes.columns, Tile::step)
                                 : map_matrix(maps.right, right, sizes.columns, sizes.depth, Tile::columns);
  if (mapped != cudaSuccess) return mapped;
  return map_matrix(maps.y, y, sizes.rows, sizes.columns, warpgroup_rows);
}

// Launches kernel(arguments...), a block of which makes tiles of this kind.
template <typename Tile, typename... Parameters, typename... Arguments>
cudaError_t launch_columns(const ColumnTiling& tiling, cudaStream_t stream, void (*kernel)(Parameters...),
                           const Arguments&... arguments) {
  const auto bytes = static_cast<int>(tiling.used_bytes());
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      error != cudaSuccess)
    return error;
  kernel<<<static_cast<unsigned>(tiling.blocks()), Tile::threads, static_cast<size_t>(bytes), stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
