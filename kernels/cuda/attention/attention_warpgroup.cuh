#pragma once

// Attention on the matrix units of Hopper, which warpgroups feed (common/warpgroup.cuh). A block owns rows of one head,
// or columns of one key head, 64 for each of its warpgroups, and walks over the other side in tiles of 64. Masks,
// dropout and softmax are those of attention_mma.cuh: both kernels have sums lie alike in registers.

#include "kernels/cuda/attention/attention_dropout.cuh"
#include "kernels/cuda/attention/attention_masks.cuh"
#include "kernels/cuda/common/card_attributes.h"
#include "kernels/cuda/common/narrow_boxes.cuh"
#include "kernels/cuda/common/short_box_products.cuh"

namespace plimsoll::cuda {

// Heads of up to `depth` elements: 32 with tiles of short rows, a multiple of 64, or of 16 with tiles of narrow boxes.
// `stages` tiles of the other side are in shared memory at a time, of which all but one are on their way; `blocks` fit
// on a multiprocessor.
template <int depth_, int groups_, int stages_, int blocks_>
struct WarpgroupTile {
  static constexpr int depth = depth_, groups = groups_, stages = stages_, blocks = blocks_;
  static constexpr int m_tiles = 1, warps = 4 * groups, warp_rows = 16;
  static constexpr int own = warpgroup_rows * groups, others = 64, threads = warpgroup_threads * groups;
  static constexpr int n_tiles = others / 8, d_tiles = depth / 8;
  static constexpr int own_elements = own * depth, other_elements = others * depth;
  static constexpr int box = depth % 64 == 0 ? 64 : depth == short_row ? short_row : narrow_box;  // elements
  static constexpr int row_step = box;

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }  // of those that fill a tile
  __device__ static int next(int stage) { return stage + 1 < stages ? stage + 1 : 0; }
  // Where a word of 16 bytes of a row stands in its box.
  __device__ static int place_of_word(int row, int word) {
    constexpr int words = box / 8, rows_alike = 8 / words;
    return word ^ row / rows_alike % words;
  }
  template <int count>
  __device__ static int place(int row, int d) {
    return d / box * count * box + row * box + place_of_word(row, d % box / 8) * 8 + d % 8;
  }
  // What the matrix units need to know of a matrix that begins here, in a tile of `count` rows.
  template <int count>
  __device__ static uint64_t matrix(const void* first) {
    if constexpr (box == narrow_box)
      return narrow_matrix<count>(first);
    else if constexpr (box == short_row)
      return short_matrix(first);
    else
      return shared_matrix(first);
  }
};

// From a tile of `count` rows to the matrix that begins at its row, a multiple of 8, and at an element of the depth, a
// multiple of 16.
template <int count, int box = 64>
__device__ constexpr uint64_t matrix_step(int row, int d) {
  return static_cast<uint64_t>(d / box * count * box + row * box + d % box) * 2 >> 4;
}

// The rows of an owned tile that are this warpgroup's.
template <typename Tile, typename T>
__device__ uint64_t own_matrix(const T* tile) {
  const int group = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  return Tile::template matrix<Tile::own>(tile + group * warpgroup_rows * Tile::box);
}

// Starts sums = own rows * (rows of the other tile)^T over the whole depth.
template <typename Tile, typename T>
__device__ void start_scores(Sums<1, Tile::n_tiles>& sums, uint64_t own, const T* other_tile) {
  const uint64_t other = Tile::template matrix<Tile::others>(other_tile);
  begin_products();
#pragma unroll
  for (int d = 0; d < Tile::depth; d += 16)
    start_product<T>(sums[0], own + matrix_step<Tile::own, Tile::box>(0, d),
                     other + matrix_step<Tile::others, Tile::box>(0, d), d > 0);
  commit_products();
}

// A tile's weights as left operands.
template <typename Tile>
struct Weights {
  LeftFragment at[Tile::others / 16];

  // All of them, or those of the other side's rows from 16 * first to before 16 * end.
  template <typename T, int first = 0, int end = Tile::others / 16>
  __device__ void round(const Sums<1, Tile::n_tiles>& sums) {
#pragma unroll
    for (int k = first; k < end; ++k) at[k] = rounded<T>(sums[0], k);
  }
  // Keeps of each pair of elements what mask(t, half) has.
  template <int first = 0, int end = Tile::others / 16, typename Mask>
  __device__ void keep(Mask mask) {
#pragma unroll
    for (int k = first; k < end; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) at[k].at[i] &= mask(2 * k + i / 2, i % 2);
  }
};

// ---- Kept bits, as masks of registers ----

// A selector for prmt, which repeats the signs of bytes of two words: of bytes `low` and `high`, two each. Bytes 4 to 7
// are the second word's.
constexpr uint32_t signs_of(int low, int high) { return static_cast<uint32_t>((8 | low) * 0x11 | (8 | high) * 0x1100); }
__device__ inline uint32_t repeated_signs(uint32_t first, uint32_t second, uint32_t selector) {
  uint32_t mask;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(mask) : "r"(first), "r"(second), "r"(selector));
  return mask;
}
__device__ inline float masked(float value, uint32_t mask) { return __uint_as_float(__float_as_uint(value) & mask); }

// Of this thread's two rows: bit 6 of byte t % 4 of word t / 4 is that of element (t, 0), and its sign that of (t, 1).
template <typename Tile>
struct KeptRows {
  uint32_t words[2][2];  // [row, t / 4]

  // Of the tile that begins at `first_column`, a multiple of 64, for the warp's rows from `first_row` on.
  __device__ void draw(const KeptDraws& draws, int first_row, int first_column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t drawn = draws(first_row + lane / 2, first_column / 32 + lane % 2);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        words[half][i] = __shfl_sync(whole_warp, drawn, 2 * (lane / 4 + 8 * half) + i) << (6 - lane % 4 * 2);
  }
  // From the words of the warp's rows, two a row.
  __device__ void read(const uint32_t* of_rows) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 row = *reinterpret_cast<const uint2*>(of_rows + 2 * (lane / 4 + 8 * half));
      words[half][0] = row.x << (6 - lane % 4 * 2);
      words[half][1] = row.y << (6 - lane % 4 * 2);
    }
  }
  __device__ uint32_t pair(int t, int half) const {
    const uint32_t word = words[half][t / 4];
    return repeated_signs(word << 1, word, signs_of(t % 4, 4 + t % 4));
  }
  __device__ float kept(float value, int t, int e) const {
    const uint32_t word = e % 2 == 0 ? words[e / 2][t / 4] << 1 : words[e / 2][t / 4];
    return masked(value, repeated_signs(word, word, signs_of(t % 4, t % 4)));
  }
};

// Where columns are owned, of the rows of a tile, whose words passed by shared memory: byte `half` of word e has the
// bit of row e and column 8 half as its sign.
struct KeptColumns {
  const uint32_t* words;
  int rotation;  // to the left

  template <typename Tile>
  __device__ static KeptColumns of(const uint32_t* shared, int first_column, const Place<Owner::Columns>& place) {
    return {TileBits<Tile, Owner::Columns>::own_words(shared, first_column), 7 - place.own % 32};
  }
  __device__ uint2 of_rows(int t) const {
    const uint2 pair = *reinterpret_cast<const uint2*>(words + 8 * t);
    return {__funnelshift_l(pair.x, pair.x, rotation), __funnelshift_l(pair.y, pair.y, rotation)};
  }
  __device__ static uint32_t pair(const uint2& rows, int half) {
    return repeated_signs(rows.x, rows.y, signs_of(half, 4 + half));
  }
  __device__ static float kept(float value, const uint2& rows, int e) {
    const uint32_t word = e % 2 == 0 ? rows.x : rows.y;
    return masked(value, repeated_signs(word, word, signs_of(e / 2, e / 2)));
  }
};

// Starts sums += weights * rows of the other tile, of all rows or of those from 16 * first to before 16 * end.
template <typename Tile, int first = 0, int end = Tile::others / 16, typename T>
__device__ void start_weighted_rows(Sums<1, Tile::d_tiles>& sums, const Weights<Tile>& weights, const T* other_tile) {
  const uint64_t other = Tile::template matrix<Tile::others>(other_tile);
  begin_products();
#pragma unroll
  for (int k = first; k < end; ++k)
    if constexpr (Tile::box == narrow_box) {
      start_wide_product<T>(sums[0], weights.at[k], other + matrix_step<Tile::others, narrow_box>(16 * k, 0));
    } else if constexpr (Tile::box == short_row) {
      start_narrow_product<T>(sums[0], weights.at[k], other + matrix_step<Tile::others, short_row>(16 * k, 0), true);
    } else {
#pragma unroll
      for (int d = 0; d < Tile::depth; d += 64)
        start_product<T>(&sums[0][d / 8], weights.at[k], other + matrix_step<Tile::others>(16 * k, d));
    }
  commit_products();
}

// Waits until no more than `pending` groups of this thread's copies are under way, shows the others to the matrix
// units, and meets the other threads.
template <int pending>
__device__ void meet_with_copies() {
  wait_for_copies<pending>();
  show_to_matrix_units();
  __syncthreads();
}

// What the mask adds to a column of a tile, for the first threads: read early, written late, so that nothing waits.
template <typename Tile, typename T>
__device__ float addition_of(const AttentionShape& n, const Head& head, int first) {
  const int column = first + static_cast<int>(threadIdx.x);
  float added = 0.0f;
  if (threadIdx.x < Tile::others && column < n.columns)
    with_mask<T>(n, head, [&](auto* mask) { added = Addition(n)(mask[column * n.mask_strides[3]]); });
  return added;
}
template <typename Tile>
__device__ void store_addition(float* additions, float added) {
  if (threadIdx.x < Tile::others) additions[threadIdx.x] = added;
}

// Tiles of rows that a block of columns meets, those of one head after the other's.
struct RowTiles {
  Range range;
  int tile, heads, head = 0, row;

  __device__ RowTiles(const Range& range, int tile, int heads)
      : range(range), tile(tile), heads(range.first < range.end ? heads : 0), row(range.first) {}
  __device__ bool is_end() const { return head == heads; }
  __device__ void advance() {
    row += tile;
    if (row < range.end) return;
    row = range.first;
    ++head;
  }
};

// A block's shared memory begins at a border of 1024 bytes, as tiles do.
__device__ inline unsigned char* tile_memory() {
  extern __shared__ __align__(1024) unsigned char memory_of_tiles[];
  return memory_of_tiles;
}

// Kernels for warpgroups run on Hopper alone; they take heads of up to 256 elements. From so many on they take all
// calls, below those of attention_short_forward and attention_grad_one_pass.
inline constexpr int min_warpgroup_depth = 33;
[[nodiscard]] inline bool takes_warpgroups(int64_t depth) { return depth >= min_warpgroup_depth && is_hopper(); }

// Of aligned tensors.
[[nodiscard]] cudaError_t attention_warpgroup(const AttentionShape& shape, const AttentionCall& call,
                                              cudaStream_t stream);
// The same for aligned heads of up to 64 elements on Hopper, without caps, slopes, segments and masks with rows but
// those that come as tiles.
[[nodiscard]] bool takes_short_forward(const AttentionShape& shape);
[[nodiscard]] cudaError_t attention_short_forward(const AttentionShape& shape, const AttentionCall& call,
                                                  cudaStream_t stream);
// Reads delta of each row.
[[nodiscard]] cudaError_t attention_grad_warpgroup(const AttentionShape& shape, bool aligned,
                                                   const AttentionGradCall& grads, cudaStream_t stream);

// In one pass: without segments, with masks with rows only for heads of up to 64 elements and without a cap, and with
// slopes only where columns beyond the row are closed and each head has its own key head. Reads delta and lse of each
// row, and turns that are 0.
[[nodiscard]] bool takes_one_pass(const AttentionShape& shape, bool aligned, const AttentionGradCall& grads);
[[nodiscard]] cudaError_t attention_grad_one_pass(const AttentionShape& shape, const AttentionGradCall& grads,
                                                  cudaStream_t stream);

}  // namespace plimsoll::cuda
