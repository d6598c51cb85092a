#pragma once

// Products whose results go through a function on their way to memory, on Hopper's warpgroups:
// y = f(kept, left right), or h = left right + bias and y = f(h), with the product rounded to 16 bits first, so that
// bits are those of two launches.
//
// A block makes one tile of y after the other. One warp asks the copy engine for tiles of both operands, two warpgroups
// multiply them and leave rounded sums in shared memory, and one or two more finish these while products of the next
// tile run: f takes time of its own only behind a block's last tile. Blocks that run at the same time have tiles
// of few rows and few columns, so that operands come from memory once, or a few times where they are large.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/warpgroup_wide.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

namespace plimsoll::cuda {

// In memory left is [rows, depth], and right [depth, columns] where it is in rows, or else [columns, depth]. Sums are
// staged in so many parts of their columns. Two parts leave room for one more stage of operands, which long sums need;
// short ones end so often that finishing needs two warpgroups, and takes the time, so that their tiles are of those
// widths that finish few columns beyond the last one.
template <bool right_in_rows_, int parts_, int columns_ = 256>
struct FinishedTile {
  static constexpr bool right_in_rows = right_in_rows_;
  static constexpr int groups = 2, rows = groups * warpgroup_rows, columns = columns_, product_tiles = columns / 8;
  static constexpr int step = box_depth, box_bytes = 64 * step * 2;
  // A product of more than 128 columns at once would need more registers than a thread has before it takes those of
  // others: they are two products. Where right is in rows each of them has boxes of 64 columns of its own.
  static constexpr int sides = columns > 128 ? 2 : 1, side_columns = columns / sides,
                       side_boxes = divide_up(side_columns, 64);
  static constexpr int side_bytes = right_in_rows ? side_boxes * box_bytes : side_columns * step * 2;
  static constexpr int left_bytes = rows * step * 2, stage_bytes = left_bytes + sides * side_bytes;
  static constexpr int parts = parts_, stages = parts == 1 ? 3 : 4;
  static constexpr int readers = groups;
  // What a group stages: boxes of 64 rows of 64 columns, one beside the other.
  static constexpr int part_columns = columns / parts, part_tiles = product_tiles / parts;
  static constexpr int group_bytes = divide_up(part_columns, 64) * box_bytes, staged_bytes = groups * group_bytes;
  static constexpr int bias_bytes = 2 * columns * static_cast<int>(sizeof(float));  // of this tile and of the next
  // Behind the ring, which begins at its border: the staged sums, the bias, and for each group a barrier that says that
  // its sums are there and one that says that they have been read.
  static constexpr int shared_bytes =
      ring_bytes<stages, stage_bytes> - tile_border + staged_bytes + bias_bytes + 2 * groups * 8;
  static constexpr int computing_threads = groups * warpgroup_threads;
  static constexpr int finishing_groups = parts == 1 ? 2 : 1, finishing_threads = finishing_groups * warpgroup_threads,
                       finishing_warps = finishing_threads / warp_threads;
  static constexpr int threads = computing_threads + finishing_threads + warpgroup_threads;
  // Of those that the threads of a launch begin with: 96 each of five warpgroups, or 128 each of four.
  static constexpr int first_registers = parts == 1 ? 96 : 128;
  static constexpr int computing_registers = parts > 1        ? 168
                                             : columns == 256 ? 160
                                                              : columns / 2 + 48,
                       copying_registers = 32;
  static constexpr int finishing_registers =
      (threads / warpgroup_threads * first_registers - groups * computing_registers - copying_registers) /
      finishing_groups;
};

// What f reads and writes beside the operands, rows of `columns` elements. F says which of these there are (adds_bias,
// whose bias may still be null, reads_kept, writes_h), and F::apply(kept, h) is an element of y.
template <typename T>
struct FinishedData {
  const T *bias, *kept;
  T *h, *y;
};

// The tiles of y and their order: group by group of 16 rows of tiles, column by column of tiles within each.
struct FinishedTiles {
  int rows, columns, steps;  // of y, and of the depth
  int down, across;

  struct Place {
    int row, column;
  };
  __device__ int count() const { return down * across; }
  // Past the last tile there are no rows.
  __device__ Place tile(int index) const {
    constexpr int group_rows = 16;
    if (index >= count()) return {down, 0};
    const int first = index / (group_rows * across) * group_rows, rest = index - first * across;
    const int together = min(group_rows, down - first);
    return {first + rest % together, rest / together};
  }
};

// Where sums wait to be finished, and what is added to them before they are rounded. A group's rows have two barriers.
template <typename Tile>
struct StagedSums {
  uint8_t* boxes;
  float* bias;
  Barrier *there, *read;  // [groups]

  __device__ explicit StagedSums(const Ring<Tile>& ring)
      : boxes(reinterpret_cast<uint8_t*>(ring.empty + Tile::stages)),
        bias(reinterpret_cast<float*>(boxes + Tile::staged_bytes)),
        there(reinterpret_cast<Barrier*>(bias + 2 * Tile::columns)),
        read(there + Tile::groups) {}
  __device__ void create() const {
    for (int i = 0; i < Tile::groups; ++i) {
      set_up_barrier(there + i, warpgroup_threads / warp_threads);
      set_up_barrier(read + i, Tile::finishing_warps);
    }
  }
  // Eight elements, of a group's row and the column 8 word of its part. Words change places so that eight rows are in
  // different banks.
  template <typename T>
  __device__ const T* at(int group, int row, int word) const {
    return reinterpret_cast<const T*>(boxes + group * Tile::group_bytes + word / 8 * Tile::box_bytes + row * 128 +
                                      (word % 8 ^ row % 8) * 16);
  }
  // A thread's sums of 8 x 16 elements have four columns; what is added to these stands side by side.
  __device__ float* bias_at(int turn, int column) const {
    return bias + turn * Tile::columns + (column / 16 * 4 + column % 8 / 2) * 4 + column % 16 / 8 * 2;
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
        for (int side = 0; side < Tile::sides; ++side)
#pragma unroll
          for (int box = 0; box < Tile::side_boxes; ++box)
            copy_box(to + side * Tile::side_bytes + box * Tile::box_bytes, right,
                     column + side * Tile::side_columns + box * box_depth, k * Tile::step, full);
      } else {
        copy_box(to, right, k * Tile::step, column, full);
      }
    }
  }
}

// ---- Computing warpgroups ----

// One step: 64 rows of left with all columns of right.
template <typename T, typename Tile>
__device__ void start_step(float (&sums)[Tile::product_tiles][4], const uint8_t* left, const uint8_t* right,
                           bool adds) {
  constexpr bool in_rows = Tile::right_in_rows;
  constexpr uint64_t left_apart = 16 * 2 >> 4, right_apart = (in_rows ? 16 * Tile::step * 2 : 16 * 2) >> 4;
  constexpr int side_tiles = Tile::side_columns / 8;
  constexpr uint64_t side_apart = Tile::side_bytes >> 4;
  const uint64_t a = shared_matrix(left), b = in_rows ? shared_columns(right, Tile::box_bytes) : shared_matrix(right);
#pragma unroll
  for (int i = 0; i < Tile::step / 16; ++i)
#pragma unroll
    for (int side = 0; side < Tile::sides; ++side)
      start_wide_product<T, false, in_rows, side_tiles>(sums + side * side_tiles, a + i * left_apart,
                                                        b + side * side_apart + i * right_apart, adds || i > 0);
}

template <typename T, bool adds_bias, typename Tile>
__device__ void multiply_tiles(const Ring<Tile>& ring, const StagedSums<Tile>& staged, const FinishedTiles& t) {
  const int group = static_cast<int>(threadIdx.x) / warpgroup_threads;
  const int warp = static_cast<int>(threadIdx.x) % warpgroup_threads / warp_threads;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  // Lane 8 m + i says where row i of 8 x 8 matrix m goes: two of them are below each other, two beside each other.
  uint8_t* to = staged.boxes + group * Tile::group_bytes + (warp * 16 + lane / 8 % 2 * 8 + lane % 8) * 128;
  const int change = (lane / 16 ^ lane % 8) * 16;
  float sums[Tile::product_tiles][4];
  StagePlace<Tile::stages> place;
  uint32_t parity = 0;
  int turn = 0;
  for (int index = static_cast<int>(blockIdx.x); index < t.count(); index += static_cast<int>(gridDim.x), turn ^= 1) {
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
    const float* bias = staged.bias_at(turn, lane % 4 * 2);  // of eight rows' sums, 16 columns further the next
#pragma unroll
    for (int part = 0; part < Tile::parts; ++part) {
      wait_at(staged.read + group, parity);
      parity ^= 1;
#pragma unroll
      for (int j = 0; j < Tile::part_tiles; j += 2) {
        const int i = part * Tile::part_tiles + j;
        if constexpr (adds_bias) {
          const float4 added = *reinterpret_cast<const float4*>(bias + i / 2 * 16);
          sums[i][0] += added.x, sums[i][1] += added.y, sums[i][2] += added.x, sums[i][3] += added.y;
          sums[i + 1][0] += added.z, sums[i + 1][1] += added.w, sums[i + 1][2] += added.z, sums[i + 1][3] += added.w;
        }
        const uint32_t words[4] = {packed_pair<T>(sums[i][0], sums[i][1]), packed_pair<T>(sums[i][2], sums[i][3]),
                                   packed_pair<T>(sums[i + 1][0], sums[i + 1][1]),
                                   packed_pair<T>(sums[i + 1][2], sums[i + 1][3])};
        store_matrices(to + j / 8 * Tile::box_bytes + (j % 8 * 16 ^ change), words);
      }
      arrive_as_warp_at(staged.there + group);
    }
  }
}

// ---- Finishing warpgroups ----

// Read once: the first-level cache, of which shared memory leaves little, is no help.
template <typename T>
__device__ Packed<T, 8> load_once(const T* from) {
  Packed<T, 8> eight;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(eight.word[0]), "=r"(eight.word[1]), "=r"(eight.word[2]), "=r"(eight.word[3])
               : "l"(from));
  return eight;
}

// Where a warp's elements of y begin, or a lane's where these stand below each other.
struct FinishedPlace {
  int64_t at = 0;
  int rows = 0, columns = 0;  // of y from there on
};

// What a finishing warp takes at a time: rows of one group's part, of which word after word is the next lane's.
template <typename Tile>
struct FinishedChunks {
  static constexpr int row_words = Tile::part_columns / 8;
  static constexpr int words = Tile::parts > 1 ? 8 : row_words % 3 == 0 ? 3 : 4;  // of a lane
  static constexpr int rows = words * warp_threads / row_words;
  static constexpr int warp_rows = warpgroup_rows / Tile::finishing_warps, in_group = warp_rows / rows;
  static constexpr int count = Tile::parts * Tile::groups * in_group;
  static constexpr bool words_below_each_other = warp_threads % row_words == 0;
  static constexpr int rows_apart = warp_threads / row_words;  // of such words
  static_assert(rows * row_words == words * warp_threads && in_group * rows == warp_rows);
  static_assert(Tile::parts == 1 || in_group == 1, "of a part each group has one");

  int first_of_warp;
  unsigned lane;

  __device__ FinishedChunks(int warp, int lane)
      : first_of_warp(warp * warp_rows), lane(static_cast<unsigned>(lane) % warp_threads) {}
  static __device__ int group(int chunk) { return chunk / in_group % Tile::groups; }
  // In the group.
  __device__ int first_row(int chunk) const { return first_of_warp + chunk % in_group * rows; }
  // In the chunk.
  __device__ int row(int r) const { return static_cast<int>((lane + r * warp_threads) / row_words); }
  __device__ int word(int r) const { return static_cast<int>((lane + r * warp_threads) % row_words); }

  __device__ FinishedPlace place(const FinishedTiles& t, FinishedTiles::Place tile, int chunk) const {
    const int row_below = words_below_each_other ? row(0) : 0, column_beside = words_below_each_other ? word(0) * 8 : 0;
    const int y_row = tile.row * Tile::rows + group(chunk) * warpgroup_rows + first_row(chunk) + row_below,
              column =
                  tile.column * Tile::columns + chunk / (in_group * Tile::groups) * Tile::part_columns + column_beside;
    const bool is_outside = words_below_each_other && column >= t.columns;
    return {y_row * int64_t{t.columns} + column, is_outside ? 0 : t.rows - y_row, t.columns - column};
  }
  __device__ int64_t at(const FinishedTiles& t, FinishedPlace from, int r) const {
    if constexpr (words_below_each_other) return from.at + r * rows_apart * int64_t{t.columns};
    return from.at + row(r) * int64_t{t.columns} + word(r) * 8;
  }
  __device__ bool is_there(FinishedPlace from, int r) const {
    if constexpr (words_below_each_other) return r * rows_apart < from.rows;
    return row(r) < from.rows && word(r) * 8 < from.columns;
  }
};

// A bias goes to shared memory before the sums that it is added to: that of the next tile while sums of this one are
// read. Nothing is added where there is none, not even to a negative 0.
template <typename T, typename Tile>
struct NextBias {
  const T* bias;
  int thread;  // of those that finish: of a warpgroup each has two columns
  uint32_t pair = 0;

  __device__ void load(const FinishedTiles& t, int index) {
    constexpr uint32_t negative_zeros = 0x80008000u;
    if (index >= t.count() || thread >= Tile::columns / 2) return;
    const int column = t.tile(index).column * Tile::columns + 2 * thread;
    pair = bias && column < t.columns ? *reinterpret_cast<const uint32_t*>(bias + column) : negative_zeros;
  }
  __device__ void store(const StagedSums<Tile>& staged, int turn) const {
    if (thread >= Tile::columns / 2) return;
    Packed<T, 2> two;
    two.word[0] = pair;
    *reinterpret_cast<float2*>(staged.bias_at(turn, 2 * thread)) = make_float2(two[0], two[1]);
  }
};

// Of what f keeps a warp asks for the next words as soon as it has used these, and so a tile ahead of the sums. Where
// there are two parts, sums of both groups are in registers before any are finished, so that the others can be staged.
template <typename T, typename F, typename Tile>
__device__ void finish_tiles(const StagedSums<Tile>& staged, const FinishedTiles& t, const FinishedData<T>& data) {
  using Chunks = FinishedChunks<Tile>;
  constexpr int words = Chunks::words;
  const int thread = static_cast<int>(threadIdx.x) - Tile::computing_threads;
  const Chunks chunks(thread / warp_threads, thread % warp_threads);
  int index = static_cast<int>(blockIdx.x), turn = 0;
  NextBias<T, Tile> bias{data.bias, thread};
  if constexpr (F::adds_bias) {
    bias.load(t, index);
    bias.store(staged, turn);
  }
  for (int group = 0; group < Tile::groups; ++group) arrive_as_warp_at(staged.read + group);
  auto tile = t.tile(index);
  FinishedPlace now = chunks.place(t, tile, 0);
  Packed<T, 8> operands[words], sums[words], others[words];
  const auto load_operand = [&](int r, FinishedPlace place) {
    if constexpr (F::reads_kept)
      if (chunks.is_there(place, r)) operands[r] = load_once(data.kept + chunks.at(t, place, r));
  };
  const auto load_sums = [&](Packed<T, 8>(&to)[words], int chunk) {
#pragma unroll
    for (int r = 0; r < words; ++r)
      to[r] = load_packed<8>(
          staged.template at<T>(Chunks::group(chunk), chunks.first_row(chunk) + chunks.row(r), chunks.word(r)));
  };
#pragma unroll
  for (int r = 0; r < words; ++r) load_operand(r, now);
  for (uint32_t parity = 0; index < t.count(); turn ^= 1) {
    const int after = index + static_cast<int>(gridDim.x);
    if constexpr (F::adds_bias) bias.load(t, after);
#pragma unroll 1
    for (int chunk = 0; chunk < Chunks::count; ++chunk) {
      const int group = Chunks::group(chunk);
      const bool ends = chunk + 1 == Chunks::count;
      if (ends) tile = t.tile(after);
      const FinishedPlace next = chunks.place(t, tile, ends ? 0 : chunk + 1);
      if (Tile::parts == 1 || group == 0) {
        if (chunk % Chunks::in_group == 0) wait_at(staged.there + group, parity);
        load_sums(sums, chunk);
        if constexpr (F::adds_bias)
          if (chunk == 0) bias.store(staged, turn ^ 1);
        if (chunk % Chunks::in_group == Chunks::in_group - 1) arrive_as_warp_at(staged.read + group);
      }
      if constexpr (Tile::parts > 1) {
        if (group == 0) {
          wait_at(staged.there + 1, parity);
          load_sums(others, chunk + 1);
          arrive_as_warp_at(staged.read + 1);
        } else {
#pragma unroll
          for (int r = 0; r < words; ++r) sums[r] = others[r];
        }
      }
      if (Tile::parts > 1 ? group + 1 == Tile::groups : ends) parity ^= 1;
#pragma unroll
      for (int r = 0; r < words; ++r) {
        float finished[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) finished[i] = F::apply(F::reads_kept ? operands[r][i] : 0.0f, sums[r][i]);
        load_operand(r, next);
        if (!chunks.is_there(now, r)) continue;
        const int64_t at = chunks.at(t, now, r);
        if constexpr (F::writes_h) store_packed(data.h + at, sums[r]);
        store_packed(data.y + at, pack<T>(finished));
      }
      now = next;
    }
    index = after;
  }
}

// ---- All warps ----

template <typename T, typename F, typename Tile>
__device__ void make_finished_tiles(const CUtensorMap& left, const CUtensorMap& right, const FinishedTiles& t,
                                    const FinishedData<T>& data) {
  extern __shared__ __align__(tile_border) uint8_t shared[];
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
    if constexpr (Tile::finishing_registers < Tile::first_registers)
      give_registers<Tile::finishing_registers>();
    else
      take_registers<Tile::finishing_registers>();
    finish_tiles<T, F>(staged, t, data);
  } else {
    take_registers<Tile::computing_registers>();
    multiply_tiles<T, F::adds_bias>(ring, staged, t);
  }
}

}  // namespace plimsoll::cuda
