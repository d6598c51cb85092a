#pragma once

// Products whose results go through a function on their way to memory, on Hopper's warpgroups:
// y = f(kept, left right), with the product rounded to 16 bits first, so that bits are those of two launches.
//
// A block makes one tile of y after the other. One warp asks the copy engine for tiles of both operands, two warpgroups
// multiply them and leave rounded sums in shared memory, and one more warpgroup finishes these while products of the
// next tile run: f takes time of its own only behind a block's last tile. Blocks that run at the same time have tiles
// of few rows and few columns, so that operands come from memory once, or a few times where they are large.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/warpgroup_wide.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

namespace plimsoll::cuda {

// In memory left is [rows, depth], and right [depth, columns] where it is in rows, or else [columns, depth].
template <bool right_in_rows_>
struct FinishedTile {
  static constexpr bool right_in_rows = right_in_rows_;
  static constexpr int groups = 2, rows = groups * warpgroup_rows, columns = 256, product_tiles = columns / 8;
  static constexpr int step = box_depth, box_bytes = 64 * step * 2;
  static constexpr int left_bytes = rows * step * 2, stage_bytes = left_bytes + columns * step * 2, stages = 3;
  static constexpr int readers = groups;
  static constexpr int staged_row = columns * 2, staged_bytes = rows * staged_row;
  // Behind the ring: the staged sums, and for each group a barrier that says that its sums are there and one that says
  // that they have been read.
  static constexpr int shared_bytes = ring_bytes<stages, stage_bytes> + staged_bytes + 2 * groups * 8;
  static constexpr int computing_threads = groups * warpgroup_threads;
  static constexpr int finishing_threads = warpgroup_threads, finishing_warps = finishing_threads / warp_threads;
  static constexpr int threads = computing_threads + finishing_threads + warpgroup_threads;
  // Of the 512 that four threads, one of each warpgroup, have together.
  static constexpr int computing_registers = 168, finishing_registers = 144, copying_registers = 32;
};

// The tiles of y and their order: group by group of 16 rows of tiles, column by column of tiles within each.
struct FinishedTiles {
  int rows, columns, steps;  // of y, and of the depth
  int down, across;

  struct Place {
    int row, column;
  };
  __device__ int count() const { return down * across; }
  __device__ Place tile(int index) const {
    constexpr int group_rows = 16;
    const int first = index / (group_rows * across) * group_rows, rest = index - first * across;
    const int together = min(group_rows, down - first);
    return {first + rest % together, rest / together};
  }
};

// Where sums wait to be finished. A group's rows have two barriers.
template <typename Tile>
struct StagedSums {
  uint8_t* rows;
  Barrier *there, *read;  // [groups]

  __device__ explicit StagedSums(const Ring<Tile>& ring)
      : rows(reinterpret_cast<uint8_t*>(ring.empty + Tile::stages)),
        there(reinterpret_cast<Barrier*>(rows + Tile::staged_bytes)),
        read(there + Tile::groups) {}
  __device__ void create() const {
    for (int i = 0; i < Tile::groups; ++i) {
      set_up_barrier(there + i, warpgroup_threads / warp_threads);
      set_up_barrier(read + i, Tile::finishing_warps);
    }
  }
};

// ---- The copying thread ----

template <typename Tile>
__device__ void copy_operands(const Ring<Tile>& ring, const FinishedTiles& t, const CUtensorMap& left,
                              const CUtensorMap& right) {
  StagePlace<Tile::stages> place;
  for (int index = static_cast<int>(blockIdx.x); index < t.count(); index += static_cast<int>(gridDim.x)) {
    const auto tile = t.tile(index);
    const int row = tile.row * Tile::rows, column = tile.column * Tile::columns;
    for (int k = 0; k < t.steps; ++k, place.advance()) {
      Barrier* full = ring.full + place.stage;
      wait_at(ring.empty + place.stage, place.parity ^ 1);
      arrive_with_copies(full, Tile::stage_bytes);
      uint8_t* to = ring.at(place.stage);
      copy_box(to, left, k * Tile::step, row, full);
      to += Tile::left_bytes;
      if constexpr (Tile::right_in_rows) {
#pragma unroll
        for (int box = 0; box < Tile::columns / box_depth; ++box)
          copy_box(to + box * Tile::box_bytes, right, column + box * box_depth, k * Tile::step, full);
      } else {
        copy_box(to, right, k * Tile::step, column, full);
      }
    }
  }
}

// ---- Computing warpgroups ----

// One step: 64 rows of left with all columns of right. A product of 256 columns at once would need more registers than
// a thread has before it takes those of others.
template <typename T, typename Tile>
__device__ void start_step(float (&sums)[Tile::product_tiles][4], const uint8_t* left, const uint8_t* right,
                           bool adds) {
  constexpr bool in_rows = Tile::right_in_rows;
  constexpr uint64_t left_apart = 16 * 2 >> 4, right_apart = (in_rows ? 16 * Tile::step * 2 : 16 * 2) >> 4;
  constexpr uint64_t half_apart = Tile::columns / 2 * Tile::step * 2 >> 4;
  constexpr int half = Tile::product_tiles / 2;
  const uint64_t a = shared_matrix(left), b = in_rows ? shared_columns(right, Tile::box_bytes) : shared_matrix(right);
#pragma unroll
  for (int i = 0; i < Tile::step / 16; ++i)
#pragma unroll
    for (int side = 0; side < 2; ++side)
      start_wide_product<T, false, in_rows, half>(sums + side * half, a + i * left_apart,
                                                  b + side * half_apart + i * right_apart, adds || i > 0);
}

template <typename T, typename Tile>
__device__ void multiply_tiles(const Ring<Tile>& ring, const StagedSums<Tile>& staged, const FinishedTiles& t) {
  const int group = static_cast<int>(threadIdx.x) / warpgroup_threads;
  const int warp = static_cast<int>(threadIdx.x) % warpgroup_threads / warp_threads;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  // Lane 8 m + i says where row i of 8 x 8 matrix m goes: two of them are below each other, two beside each other. A
  // row's 16-byte words change places so that eight rows are in different banks.
  uint8_t* to = staged.rows + (group * warpgroup_rows + warp * 16 + lane / 8 % 2 * 8 + lane % 8) * Tile::staged_row;
  const int change = (lane / 16 ^ lane % 8) * 16;
  float sums[Tile::product_tiles][4];
  StagePlace<Tile::stages> place;
  uint32_t parity = 1;
  for (int index = static_cast<int>(blockIdx.x); index < t.count(); index += static_cast<int>(gridDim.x)) {
    int before = -1;  // the stage whose products may still be under way
    for (int k = 0; k < t.steps; ++k, place.advance()) {
      wait_at(ring.full + place.stage, place.parity);
      const uint8_t* from = ring.at(place.stage);
      begin_products();
      start_step<T, Tile>(sums, from + group * Tile::box_bytes, from + Tile::left_bytes, k > 0);
      commit_products();
      wait_for_products<1>();
      if (announces && before >= 0) arrive_at(ring.empty + before);
      before = place.stage;
    }
    wait_for_products<0>();
    settle(sums);
    if (announces) arrive_at(ring.empty + before);
    wait_at(staged.read + group, parity);
    parity ^= 1;
#pragma unroll
    for (int i = 0; i < Tile::product_tiles; i += 2) {
      const uint32_t words[4] = {packed_pair<T>(sums[i][0], sums[i][1]), packed_pair<T>(sums[i][2], sums[i][3]),
                                 packed_pair<T>(sums[i + 1][0], sums[i + 1][1]),
                                 packed_pair<T>(sums[i + 1][2], sums[i + 1][3])};
      store_matrices(to + i / 8 * 128 + (i % 8 * 16 ^ change), words);
    }
    arrive_as_warp_at(staged.there + group);
  }
}

// ---- The finishing warpgroup ----

// Read once: the first-level cache, of which shared memory leaves little, is no help.
template <typename T>
__device__ Packed<T, 8> load_once(const T* from) {
  Packed<T, 8> eight;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(eight.word[0]), "=r"(eight.word[1]), "=r"(eight.word[2]), "=r"(eight.word[3])
               : "l"(from));
  return eight;
}

// Where a lane's elements of y begin in a tile: eight columns of its warp's first row.
struct LanePlace {
  int64_t at = 0;
  int rows = 0;  // of y from there on
};
template <typename Tile>
__device__ LanePlace lane_place(const FinishedTiles& t, int index, int first_row, int first_column) {
  if (index >= t.count()) return {};
  const auto tile = t.tile(index);
  const int row = tile.row * Tile::rows + first_row, column = tile.column * Tile::columns + first_column;
  return {row * int64_t{t.columns} + column, column < t.columns ? t.rows - row : 0};
}

// A warp takes eight rows at a time, a lane eight columns of them. It asks for what f keeps of its next rows as soon as
// it has used that of these, and so a tile ahead of the sums.
template <typename T, typename F, typename Tile>
__device__ void finish_tiles(const StagedSums<Tile>& staged, const FinishedTiles& t, const T* kept, T* y) {
  constexpr int at_once = 8, warp_rows = warpgroup_rows / Tile::finishing_warps, parts = warp_rows / at_once;
  constexpr int words = Tile::columns / 8;
  static_assert(words == warp_threads, "a warp has a row");
  const int warp = static_cast<int>(threadIdx.x) % Tile::finishing_threads / warp_threads;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int64_t width = t.columns;
  int index = static_cast<int>(blockIdx.x);
  LanePlace now = lane_place<Tile>(t, index, warp * warp_rows, lane * 8);
  Packed<T, 8> operands[at_once];
#pragma unroll
  for (int r = 0; r < at_once; ++r)
    if (r < now.rows) operands[r] = load_once(kept + now.at + r * width);
  for (uint32_t parity = 0; index < t.count(); parity ^= 1) {
    index += static_cast<int>(gridDim.x);
    const LanePlace after = lane_place<Tile>(t, index, warp * warp_rows, lane * 8);
#pragma unroll 1
    for (int part = 0; part < Tile::groups * parts; ++part) {
      const auto first_row = [&](int part) { return part / parts * warpgroup_rows + part % parts * at_once; };
      const int group = part / parts, row = first_row(part), rows = now.rows - row;
      const bool ends = part + 1 == Tile::groups * parts;
      const int next_row = ends ? 0 : first_row(part + 1), next_rows = (ends ? after.rows : now.rows) - next_row;
      const T* next = kept + (ends ? after.at : now.at) + next_row * width;
      if (part % parts == 0) wait_at(staged.there + group, parity);
      Packed<T, 8> products[at_once];
      const uint8_t* from = staged.rows + (row + warp * warp_rows) * Tile::staged_row;
#pragma unroll
      for (int r = 0; r < at_once; ++r)
        products[r] = load_packed<8>(reinterpret_cast<const T*>(from + r * Tile::staged_row + (lane ^ r) * 16));
      T* to = y + now.at + row * width;
#pragma unroll
      for (int r = 0; r < at_once; ++r) {
        float finished[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) finished[i] = F::apply(operands[r][i], products[r][i]);
        if (r < next_rows) operands[r] = load_once(next + r * width);
        if (r < rows) store_packed(to + r * width, pack<T>(finished));
      }
      if (part % parts == parts - 1) arrive_as_warp_at(staged.read + group);
    }
    now = after;
  }
}

// ---- All warps ----

template <typename T, typename F, typename Tile>
__device__ void make_finished_tiles(const CUtensorMap& left, const CUtensorMap& right, const FinishedTiles& t,
                                    const T* kept, T* y) {
  extern __shared__ uint8_t shared[];
  const Ring<Tile> ring(shared);
  const StagedSums<Tile> staged(ring);
  constexpr int first_finishing = Tile::computing_threads, first_copying = first_finishing + Tile::finishing_threads;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    staged.create();
    ring.create();
  }
  if (thread == first_copying) {
    fetch_map(left);
    fetch_map(right);
  }
  __syncthreads();
  if (thread >= first_copying) {
    give_registers<Tile::copying_registers>();
    if (thread == first_copying) copy_operands(ring, t, left, right);
  } else if (thread >= first_finishing) {
    take_registers<Tile::finishing_registers>();
    finish_tiles<T, F>(staged, t, kept, y);
  } else {
    take_registers<Tile::computing_registers>();
    multiply_tiles<T>(ring, staged, t);
  }
}

}  // namespace plimsoll::cuda
