#pragma once

// A FinishedTile whose columns are multiplied, staged and finished in two halves, for functions that keep nothing and
// for sums of some length. Sums of the lower half are rounded and staged while the last products of the upper half run,
// and those of the upper half while the first products of the next tile do, so that matrix units do not wait for it.

#include "kernels/cuda/matmul/finished_product.cuh"

namespace plimsoll::cuda {

// Operands lie as for a FinishedTile. A depth has two steps or more: the first and the last one of a tile differ.
template <bool right_in_rows_>
struct HalvedTile {
  static constexpr bool right_in_rows = right_in_rows_;
  static constexpr int groups = 2, rows = groups * warpgroup_rows, columns = 256;
  static constexpr int halves = 2, half_columns = columns / halves, half_tiles = half_columns / 8;
  static constexpr int step = box_depth, box_bytes = 64 * step * 2;
  static constexpr int left_bytes = rows * step * 2, half_bytes = half_columns * step * 2,
                       stage_bytes = left_bytes + halves * half_bytes;
  static constexpr int sides = halves, side_columns = half_columns, side_boxes = half_columns / 64,
                       side_bytes = half_bytes;
  static constexpr int stages = 4, readers = groups;
  // What a group stages of a half: boxes of 64 rows of 64 columns, one beside the other.
  static constexpr int group_bytes = half_columns / 64 * box_bytes, staged_bytes = groups * group_bytes;
  static constexpr int bias_bytes = groups * half_columns * static_cast<int>(sizeof(float));  // of the next half
  // Behind the ring, which begins at its border: the staged sums, the bias, and for each group a barrier that says that
  // its sums are there and one that says that they have been read.
  static constexpr int shared_bytes =
      ring_bytes<stages, stage_bytes> - tile_border + staged_bytes + bias_bytes + 2 * groups * 8;
  static constexpr int computing_threads = groups * warpgroup_threads, finishing_threads = computing_threads;
  static constexpr int threads = computing_threads + finishing_threads + warpgroup_threads;
  static constexpr int first_registers = 96, computing_registers = 160, finishing_registers = 64,
                       copying_registers = 32;
  static_assert(groups * (computing_registers + finishing_registers) + copying_registers ==
                threads / warpgroup_threads * first_registers);
};

// Where sums of a half wait to be finished, and what is added to them before they are rounded. Each group has its own.
template <bool right_in_rows>
struct StagedSums<HalvedTile<right_in_rows>> {
  using Tile = HalvedTile<right_in_rows>;
  uint8_t* boxes;
  float* bias;
  Barrier *there, *read;  // [groups]

  __device__ explicit StagedSums(const Ring<Tile>& ring)
      : boxes(reinterpret_cast<uint8_t*>(ring.empty + Tile::stages)),
        bias(reinterpret_cast<float*>(boxes + Tile::staged_bytes)),
        there(reinterpret_cast<Barrier*>(bias + Tile::groups * Tile::half_columns)),
        read(there + Tile::groups) {}
  __device__ void create() const {
    for (int i = 0; i < Tile::groups; ++i) {
      set_up_barrier(there + i, warpgroup_threads / warp_threads);
      set_up_barrier(read + i, warpgroup_threads / warp_threads);
    }
  }
  // Eight elements, of a group's row and the column 8 word of its half. Words change places so that eight rows are in
  // different banks.
  template <typename T>
  __device__ const T* at(int group, int row, int word) const {
    return reinterpret_cast<const T*>(boxes + group * Tile::group_bytes + word / 8 * Tile::box_bytes + row * 128 +
                                      (word % 8 ^ row % 8) * 16);
  }
  // A thread's sums of 8 x 16 elements have four columns; what is added to these stands side by side.
  __device__ float* bias_at(int group, int column) const {
    return bias + group * Tile::half_columns + (column / 16 * 4 + column % 8 / 2) * 4 + column % 16 / 8 * 2 +
           column % 2;
  }
};

// ---- Computing warpgroups ----

// One step of a half: a group's 64 rows of left with the half's columns of right.
template <typename T, typename Tile>
__device__ void start_half(float (&sums)[Tile::half_tiles][4], const uint8_t* stage, int group, int half, bool adds) {
  constexpr bool in_rows = Tile::right_in_rows;
  constexpr uint64_t left_apart = 16 * 2 >> 4, right_apart = (in_rows ? 16 * Tile::step * 2 : 16 * 2) >> 4;
  const uint8_t *left = stage + group * Tile::box_bytes, *right = stage + Tile::left_bytes + half * Tile::half_bytes;
  const uint64_t a = shared_matrix(left), b = in_rows ? shared_columns(right, Tile::box_bytes) : shared_matrix(right);
#pragma unroll
  for (int i = 0; i < Tile::step / 16; ++i)
    start_wide_product<T, false, in_rows, Tile::half_tiles>(sums, a + i * left_apart, b + i * right_apart,
                                                            adds || i > 0);
}

template <typename T, bool adds_bias, typename Tile>
struct SumStaging {
  const StagedSums<Tile>& staged;
  int group;
  uint8_t* to;
  const float* bias;
  int change;
  uint32_t parity = 0;

  // Lane 8 m + i says where row i of 8 x 8 matrix m goes: two of them are below each other, two beside each other.
  __device__ SumStaging(const StagedSums<Tile>& staged, int group, int warp, int lane)
      : staged(staged),
        group(group),
        to(staged.boxes + group * Tile::group_bytes + (warp * 16 + lane / 8 % 2 * 8 + lane % 8) * 128),
        bias(staged.bias_at(group, lane % 4 * 2)),
        change((lane / 16 ^ lane % 8) * 16) {}

  __device__ void store(float (&sums)[Tile::half_tiles][4]) {
    wait_at(staged.read + group, parity);
    parity ^= 1;
#pragma unroll
    for (int i = 0; i < Tile::half_tiles; i += 2) {
      if constexpr (adds_bias) {
        const float4 added = *reinterpret_cast<const float4*>(bias + i / 2 * 16);
        sums[i][0] += added.x, sums[i][1] += added.y, sums[i][2] += added.x, sums[i][3] += added.y;
        sums[i + 1][0] += added.z, sums[i + 1][1] += added.w, sums[i + 1][2] += added.z, sums[i + 1][3] += added.w;
      }
      const uint32_t words[4] = {packed_pair<T>(sums[i][0], sums[i][1]), packed_pair<T>(sums[i][2], sums[i][3]),
                                 packed_pair<T>(sums[i + 1][0], sums[i + 1][1]),
                                 packed_pair<T>(sums[i + 1][2], sums[i + 1][3])};
      store_matrices(to + i / 8 * Tile::box_bytes + (i % 8 * 16 ^ change), words);
    }
    arrive_as_warp_at(staged.there + group);
  }
};

// Products of a tile's first step and of its last one are started half by half, those between together. The assembler
// keeps products apart that run while sums of others are read, unless all have been waited for once in a turn: that is
// done where the upper half's last products are through anyway.
template <typename T, bool adds_bias, bool right_in_rows>
__device__ void multiply_tiles(const Ring<HalvedTile<right_in_rows>>& ring,
                               const StagedSums<HalvedTile<right_in_rows>>& staged, const FinishedTiles& t) {
  using Tile = HalvedTile<right_in_rows>;
  const int group = static_cast<int>(threadIdx.x) / warpgroup_threads;
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  SumStaging<T, adds_bias, Tile> staging(staged, group,
                                         static_cast<int>(threadIdx.x) % warpgroup_threads / warp_threads,
                                         static_cast<int>(threadIdx.x) % warp_threads);
  float low[Tile::half_tiles][4], high[Tile::half_tiles][4];
  StagePlace<Tile::stages> place, used;  // the next stage to multiply, and the first that is not free yet
  const auto start_low = [&](bool adds) {
    wait_at(ring.full + place.stage, place.parity);
    begin_products();
    start_half<T, Tile>(low, ring.at(place.stage), group, 0, adds);
    commit_products();
  };
  const auto start_high = [&](bool adds) {
    begin_products();
    start_half<T, Tile>(high, ring.at(place.stage), group, 1, adds);
    commit_products();
    place.advance();
  };
  const auto free_stage = [&] {
    if (announces) arrive_at(ring.empty + used.stage);
    used.advance();
  };
  int index = static_cast<int>(blockIdx.x);
  start_low(false);
  start_high(false);
  for (;;) {
    for (int k = 1; k < t.steps - 1; ++k, place.advance()) {
      wait_at(ring.full + place.stage, place.parity);
      begin_products();
      start_half<T, Tile>(low, ring.at(place.stage), group, 0, true);
      start_half<T, Tile>(high, ring.at(place.stage), group, 1, true);
      commit_products();
      wait_for_products<1>();
      free_stage();
    }
    start_low(true);
    start_high(true);
    wait_for_products<1>();
    settle(low);
    free_stage();
    staging.store(low);
    index += static_cast<int>(gridDim.x);
    if (index >= t.count()) break;
    wait_for_products<0>();
    settle(high);
    free_stage();
    start_low(false);
    staging.store(high);
    start_high(false);
  }
  wait_for_products<0>();
  settle(high);
  staging.store(high);
}

// ---- Finishing warpgroups ----

// Where a lane's elements of y begin: eight columns of its warp's first row of a chunk.
struct LanePlace {
  int64_t at = 0;
  int rows = 0;  // of y from there on
};

// A group's sums are finished by a warpgroup: 16 rows by each warp, of which a lane has eight columns of every other
// one. All are in registers before any are finished, so that the next half can be staged.
template <typename T, typename F, typename Tile>
struct Finisher {
  static_assert(!F::reads_kept, "there are no registers for it");
  static constexpr int words = 8, rows_apart = 2;

  const StagedSums<Tile>& staged;
  const FinishedTiles& t;
  const FinishedData<T>& data;
  int group, row, word, column;  // row and word of the lane in a half; column of the thread that is of its bias
  int64_t apart;
  LanePlace now;

  __device__ Finisher(const StagedSums<Tile>& staged, const FinishedTiles& t, const FinishedData<T>& data, int thread)
      : staged(staged),
        t(t),
        data(data),
        group(thread / warpgroup_threads),
        row(thread % warpgroup_threads / warp_threads * 16 + thread % warp_threads / 16),
        word(thread % 16),
        column(thread % warpgroup_threads),
        apart(int64_t{t.columns} * rows_apart) {}

  __device__ LanePlace place(FinishedTiles::Place tile, int half) const {
    const int y_row = tile.row * Tile::rows + group * warpgroup_rows + row,
              y_column = tile.column * Tile::columns + half * Tile::half_columns + word * 8;
    return {y_row * int64_t{t.columns} + y_column, y_column < t.columns ? t.rows - y_row : 0};
  }
  // Nothing is added where there is no bias, not even to a negative 0.
  __device__ float bias(FinishedTiles::Place tile, int half) const {
    const int at = tile.column * Tile::columns + half * Tile::half_columns + column;
    return data.bias && at < t.columns ? widen(data.bias[at]) : -0.0f;
  }
  __device__ void begin(FinishedTiles::Place tile) {
    if constexpr (F::adds_bias) *staged.bias_at(group, column) = bias(tile, 0);
    arrive_as_warp_at(staged.read + group);
    now = place(tile, 0);
  }
  // The bias of the half behind this one goes to shared memory before its sums may.
  __device__ void finish_half(FinishedTiles::Place next_tile, int next_half, uint32_t parity) {
    float next_bias = 0;
    if constexpr (F::adds_bias) next_bias = bias(next_tile, next_half);
    const LanePlace behind = place(next_tile, next_half);
    wait_at(staged.there + group, parity);
    // Past the empty statements the compiler has loaded all of them.
    Packed<T, 8> sums[words];
#pragma unroll
    for (int r = 0; r < words; ++r) sums[r] = load_packed<8>(staged.template at<T>(group, row + r * rows_apart, word));
#pragma unroll
    for (Packed<T, 8>& eight : sums)
#pragma unroll
      for (uint32_t& two : eight.word) asm volatile("" : "+r"(two));
    if constexpr (F::adds_bias) *staged.bias_at(group, column) = next_bias;
    arrive_as_warp_at(staged.read + group);
#pragma unroll
    for (int r = 0; r < words; ++r) {
      float finished[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) finished[i] = F::apply(0.0f, sums[r][i]);
      if (r * rows_apart >= now.rows) continue;
      if constexpr (F::writes_h) store_packed(data.h + now.at + r * apart, sums[r]);
      store_packed(data.y + now.at + r * apart, pack<T>(finished));
    }
    now = behind;
  }
};

template <typename T, typename F, bool right_in_rows>
__device__ void finish_tiles(const StagedSums<HalvedTile<right_in_rows>>& staged, const FinishedTiles& t,
                             const FinishedData<T>& data) {
  using Tile = HalvedTile<right_in_rows>;
  Finisher<T, F, Tile> finisher(staged, t, data, static_cast<int>(threadIdx.x) - Tile::computing_threads);
  int index = static_cast<int>(blockIdx.x);
  auto tile = t.tile(index);
  finisher.begin(tile);
  uint32_t parity = 0;
  while (index < t.count())
#pragma unroll 1
    for (int half = 0; half < Tile::halves; ++half, parity ^= 1) {
      if (half == 1) {
        index += static_cast<int>(gridDim.x);
        tile = t.tile(index);
      }
      finisher.finish_half(tile, half ^ 1, parity);
    }
}

}  // namespace plimsoll::cuda
