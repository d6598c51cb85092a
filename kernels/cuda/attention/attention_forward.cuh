#pragma once

// What blocks of attention_warpgroup.cu are made of: the rows that they own, what they share, and the warps that bring
// k and v and draw dropout's bits, so that the other warpgroups do nothing but compute.

#include "kernels/cuda/attention/attention_softmax.cuh"
#include "kernels/cuda/attention/attention_warpgroup.cuh"
#include "kernels/cuda/common/box_copy.cuh"

namespace plimsoll::cuda {

// A block of `groups` computing warpgroups, which own 64 rows each, and of one that loads.
template <int depth, int groups, int stages, int blocks, int computing_registers_, int loading_registers_>
struct ForwardTile : WarpgroupTile<depth, groups, stages, blocks> {
  using Base = WarpgroupTile<depth, groups, stages, blocks>;
  using OfGroup = WarpgroupTile<depth, 1, stages, blocks>;  // the rows of a warpgroup
  static constexpr int computing_registers = computing_registers_, loading_registers = loading_registers_;
  static constexpr int block_threads = Base::threads + warpgroup_threads;
};

// What copies of boxes know of the tensors.
struct AttentionMaps {
  CUtensorMap q, k, v, y;

  // For boxes of so many rows and columns, and of a warp's rows of y, and of so many elements.
  [[nodiscard]] cudaError_t fill(const AttentionShape& n, const AttentionCall& call, int rows, int columns,
                                 int warp_rows, int elements) {
    const int64_t y_step = n.heads * n.value_depth;
    for (cudaError_t error :
         {map_rows(q, call.q, n.batch, n.rows, n.heads, n.depth, n.q_step, rows, elements),
          map_rows(y, call.y, n.batch, n.rows, n.heads, n.value_depth, y_step, warp_rows, elements),
          map_rows(k, call.k, n.batch, n.columns, n.kv_heads, n.depth, n.k_step, columns, elements),
          map_rows(v, call.v, n.batch, n.columns, n.kv_heads, n.value_depth, n.v_step, columns, elements)})
      if (error != cudaSuccess) return error;
    return cudaSuccess;
  }
};

// The rows of a head that a block owns, and the columns that any of them meets.
struct RowBlock {
  Head head;
  int first;
  Range columns;

  // Those of the rows of a warpgroup.
  template <typename Tile>
  __device__ Range columns_of_group(const AttentionShape& n, int first_row) const {
    if constexpr (Tile::groups == 1) return columns;
    Range range{columns.first, columns.first};
    if (first_row < n.rows) range = range_of_others<Owner::Rows>(n, head, first_row, warpgroup_rows, Tile::others);
    return {max(range.first, columns.first), min(range.end, columns.end)};
  }
  // The longest rows of causal attention come first.
  template <typename Tile>
  __device__ static RowBlock of(const AttentionShape& n, unsigned row_tiles) {
    const unsigned number = blockIdx.x / row_tiles, heads = static_cast<unsigned>(n.heads);
    const int first = static_cast<int>(row_tiles - 1 - blockIdx.x % row_tiles) * Tile::own;
    const Head head{number / heads, number % heads};
    return {head, first, range_of_others<Owner::Rows>(n, head, first, Tile::own, Tile::others)};
  }
};

// For a whole warp, of which one thread does what follows.
__device__ inline void wait_as_warp_at(Barrier* barrier, uint32_t parity) {
  wait_patiently_at(barrier, parity);
  __syncwarp();
}

template <typename Tile, typename T>
struct ForwardMemory {
  T *q, *k_stages, *v_stages;
  uint32_t* all_words;  // [stages, own, 2] kept bits of rows
  Barrier* barriers;    // q's, then of each stage: k's, v's and the words' that are full, k's and v's that are empty

  static constexpr int barrier_count = 1 + 5 * Tile::stages;
  static constexpr int bytes =
      (Tile::own_elements + 2 * Tile::stages * Tile::other_elements) * static_cast<int>(sizeof(T)) +
      2 * Tile::stages * Tile::own * static_cast<int>(sizeof(uint32_t)) +
      barrier_count * static_cast<int>(sizeof(Barrier));

  __device__ explicit ForwardMemory(void* shared)
      : q(static_cast<T*>(shared)),
        k_stages(q + Tile::own_elements),
        v_stages(k_stages + Tile::stages * Tile::other_elements),
        all_words(reinterpret_cast<uint32_t*>(v_stages + Tile::stages * Tile::other_elements)),
        barriers(reinterpret_cast<Barrier*>(all_words + 2 * Tile::stages * Tile::own)) {}

  __device__ T* k(int stage) const { return k_stages + stage * Tile::other_elements; }
  __device__ T* v(int stage) const { return v_stages + stage * Tile::other_elements; }
  __device__ uint32_t* words(int stage) const { return all_words + 2 * stage * Tile::own; }

  __device__ Barrier* q_barrier() const { return barriers; }
  __device__ Barrier* full_k(int stage) const { return barriers + 1 + stage; }
  __device__ Barrier* full_v(int stage) const { return full_k(stage) + Tile::stages; }
  __device__ Barrier* full_words(int stage) const { return full_v(stage) + Tile::stages; }
  __device__ Barrier* empty_k(int stage) const { return full_words(stage) + Tile::stages; }
  __device__ Barrier* empty_v(int stage) const { return empty_k(stage) + Tile::stages; }

  __device__ void set_up_barriers() const {
    set_up_barrier(q_barrier(), 1);
    for (int stage = 0; stage < Tile::stages; ++stage) {
      set_up_barrier(full_k(stage), 1);
      set_up_barrier(full_v(stage), 1);
      set_up_barrier(full_words(stage), warpgroup_threads / 32);
      set_up_barrier(empty_k(stage), Tile::warps);
      set_up_barrier(empty_v(stage), Tile::warps);
    }
    show_barriers_to_copies();
  }

  // Computing warps wait for what was loaded, and give it back.
  using Place = StagePlace<Tile::stages>;
  __device__ void wait_for_k(const Place& at) const { wait_at(full_k(at.stage), at.parity); }
  __device__ void wait_for_v(const Place& at) const { wait_at(full_v(at.stage), at.parity); }
  __device__ void wait_for_words(const Place& at) const { wait_at(full_words(at.stage), at.parity); }
  __device__ void release_k(const Place& at) const { arrive_as_warp_at(empty_k(at.stage)); }
  __device__ void release_v(const Place& at) const { arrive_as_warp_at(empty_v(at.stage)); }

  // Loading warps wait until they may fill a stage, all of their threads, of which one goes on to fill it.
  __device__ void wait_for_empty_k(const Place& at) const { wait_as_warp_at(empty_k(at.stage), at.parity ^ 1); }
  __device__ void wait_for_empty_v(const Place& at) const { wait_as_warp_at(empty_v(at.stage), at.parity ^ 1); }
};

// ---- Masks of tiles of scores, beside those of attention_masks.cuh ----

// Adds a mask of columns to the columns from place.other on.
template <typename Tile, typename T>
__device__ void add_mask_of_columns(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n, const Head& head,
                                    const Place<Owner::Rows>& place) {
  const int first = made_here(place.other), columns = static_cast<int>(n.columns);
  with_mask<T>(n, Head{made_here(head.b), made_here(head.h)}, [&](auto* mask) {
    const Addition addition(made_here(n.scale));
    const int64_t step = n.mask_strides[3];
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = first + 8 * t + e;
        const float added = column < columns ? addition(mask[column * step]) : 0.0f;
#pragma unroll
        for (int m = 0; m < Tile::m_tiles; ++m) sums[m][t][e] += added, sums[m][t][2 + e] += added;
      }
  });
}

// Closes the columns that a row does not see, as close_outside does: it sees those from `first` to before `end`.
template <typename Tile>
__device__ void close_columns(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n,
                              const Place<Owner::Rows>& place) {
  const int columns = static_cast<int>(n.columns);
  const int window = n.window > 0 ? static_cast<int>(n.window) : static_cast<int>(n.rows) + columns + Tile::own;
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = place.own_row(m, 2 * half);
      const int end = min(columns, n.causal ? row + 1 : row + window) - place.other;
      const int first = row - window + 1 - place.other;
#pragma unroll
      for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * t + e < first || 8 * t + e >= end) sums[m][t][2 * half + e] = -INFINITY;
    }
}

// ---- The other warps ----

// Starts the copies of a tile of `rows` rows, for whose barrier `more_bytes` come besides. One thread calls it.
template <typename Tile, int rows, typename T>
__device__ void copy_tile(T* tile, const CUtensorMap& map, int64_t head, int row, int64_t batch, Barrier* barrier,
                          int more_bytes = 0) {
  arrive_with_copies(barrier, rows * Tile::depth * static_cast<int>(sizeof(T)) + more_bytes);
#pragma unroll
  for (int d = 0; d < Tile::depth; d += Tile::box)
    copy_box(tile + d * rows, map, d, static_cast<int>(head), row, static_cast<int>(batch), barrier);
}

// What the loading warpgroup does: its first thread starts copies, and all of its threads draw the bits of the block's
// rows, two words each, so that they share the keys of the rounds. Where a tile has one word for each thread, two tiles
// are drawn at a time: warps that drew in turn would hold up some computing warps more than others.
template <typename Tile, bool drops, typename T>
__device__ void load_tiles(const AttentionMaps& maps, const AttentionShape& n, const RowBlock& block,
                           const ForwardMemory<Tile, T>& memory) {
  constexpr int together = drops ? warpgroup_threads / Tile::own : 1;  // tiles
  static_assert(!drops || together == 1 || together == 2);
  const int thread = static_cast<int>(threadIdx.x) - Tile::threads, warp = __shfl_sync(whole_warp, thread / 32, 0);
  if (!drops && warp > 0) return;
  const bool leads = thread == 0;
  const Head& head = block.head;
  const int64_t kv_head = head.kv_head(n);
  const KeptDraws draws(n, head);
  if (leads) copy_tile<Tile, Tile::own>(memory.q, maps.q, head.h, block.first, head.b, memory.q_barrier());
  StagePlace<Tile::stages> at;
  for (int column = block.columns.first; column < block.columns.end; column += together * Tile::others) {
    const int tiles = min(together, (block.columns.end - column + Tile::others - 1) / Tile::others);
    StagePlace<Tile::stages> drawn = at;
    for (int i = 0; i < tiles; ++i, at.advance()) {
      const int first = column + i * Tile::others;
      if (warp == 0) memory.wait_for_empty_k(at);
      if (leads)
        copy_tile<Tile, Tile::others>(memory.k(at.stage), maps.k, kv_head, first, head.b, memory.full_k(at.stage));
      memory.wait_for_empty_v(at);
      if (leads)
        copy_tile<Tile, Tile::others>(memory.v(at.stage), maps.v, kv_head, first, head.b, memory.full_v(at.stage));
    }
    if constexpr (drops) {
      const int row = thread / together, word = thread % together;
      uint32_t words[2];
      draws.draw<2, together>(words, block.first + row, column / 32 + word);
#pragma unroll
      for (int i = 0; i < together; ++i, drawn.advance()) {
        if (i == tiles) break;
        uint32_t* const of_row = memory.words(drawn.stage) + 2 * row;
        of_row[word] = words[i];
        if (together == 1) of_row[1] = words[1];
        arrive_as_warp_at(memory.full_words(drawn.stage));
      }
    }
  }
}

// Writes a warp's rows of y, from `row` on, by way of its rows of the tile of q. The warp's first thread then waits for
// stored boxes.
template <typename Tile, typename T, typename Factor>
__device__ void store_rows_of_y(const AttentionMaps& maps, const Head& head, int row, int depth, T* q,
                                const Sums<1, Tile::d_tiles>& sums, Factor factor) {
  const int thread = made_here(static_cast<int>(threadIdx.x)), lane = thread % 32;
  constexpr int box = Tile::box, of_box = box / 16;
  T* const own = q + thread / 32 * Tile::warp_rows * box;
  const int place = Tile::template place<Tile::own>(lane % 16, lane / 16 * 8);
  const float by[2] = {factor(0), factor(1)};
  __syncwarp();
#pragma unroll
  for (int k = 0; k < Tile::depth / 16; ++k) {
    const float(&first)[4] = sums[0][2 * k], (&second)[4] = sums[0][2 * k + 1];
    const uint32_t at[4] = {
        packed_pair<T>(first[0] * by[0], first[1] * by[0]), packed_pair<T>(first[2] * by[1], first[3] * by[1]),
        packed_pair<T>(second[0] * by[0], second[1] * by[0]), packed_pair<T>(second[2] * by[1], second[3] * by[1])};
    store_matrices(own + k / of_box * Tile::own * box + (place ^ k % of_box * 16), at);
  }
  show_to_matrix_units();
  __syncwarp();
  if (lane > 0) return;
#pragma unroll
  for (int d = 0; d < Tile::depth; d += box)
    if (d < depth) store_box(own + d * Tile::own, maps.y, d, static_cast<int>(head.h), row, static_cast<int>(head.b));
}

}  // namespace plimsoll::cuda
