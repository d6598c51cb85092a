#pragma once

// What blocks of attention_short_forward.cu are made of: row blocks that they take one after the other, what they
// share, and the warps that bring q, k, v and masks and draw dropout's bits.

#include "kernels/cuda/attention/attention_forward.cuh"
#include "kernels/cuda/common/matrix_boxes.cuh"

namespace plimsoll::cuda {

// Heads of up to 64 elements. A block has one or four computing warpgroups, which own 64 rows each and share k and v,
// and one that loads; three blocks of one fit on a multiprocessor, or one of four. `row_stages` tiles of q are in
// shared memory at a time. `mask_bytes` are those of an element of a mask with rows, or 0.
template <int depth, int groups, int stages, int row_stages_, int mask_bytes_>
struct ShortForwardTile : WarpgroupTile<depth, groups, stages, groups == 1 ? 3 : 1> {
  using Base = WarpgroupTile<depth, groups, stages, groups == 1 ? 3 : 1>;
  static constexpr int row_stages = row_stages_, mask_bytes = mask_bytes_;
  static constexpr int drawn_together = 2;  // tiles, by blocks of one computing warpgroup
  static constexpr int word_stages = groups == 1 ? stages + drawn_together : 0;
  static constexpr int computing_registers = groups == 1 ? 128 : 112, loading_registers = 32;
  static constexpr int block_threads = Base::threads + warpgroup_threads;
};

struct ShortForwardMaps : AttentionMaps {
  CUtensorMap mask;  // where it has rows

  [[nodiscard]] cudaError_t fill_mask(const AttentionShape& n, int mask_bytes, int rows) {
    const int64_t batch = n.mask_strides[0] != 0 ? n.batch : 1, heads = n.mask_strides[1] != 0 ? n.heads : 1;
    return map_matrices(mask, n.mask, batch, heads, n.rows, n.columns, n.mask_strides[2], mask_bytes, rows);
  }
};

// The row blocks of a call: each block begins with that of its own number, and takes further ones by a number in
// memory.
struct RowBlocks {
  unsigned tiles, count;  // of a head, and of all
  unsigned* next;         // how many were taken beside the first ones; unused where each block has one
};

// The rows of a head, and the columns that any of them meets.
struct ShortRowBlock {
  Head head;
  int first;
  Range columns;

  // The longest rows of causal attention come first.
  template <typename Tile>
  __device__ static ShortRowBlock of(const AttentionShape& n, const RowBlocks& blocks, unsigned number,
                                     Range columns = {}) {
    const unsigned of_head = number / blocks.tiles, heads = static_cast<unsigned>(n.heads);
    const int first = static_cast<int>(blocks.tiles - 1 - number % blocks.tiles) * Tile::own;
    return {{of_head / heads, of_head % heads}, first, columns};
  }
};

// The row block that is next, in shared memory.
struct alignas(16) RowBlockNote {
  static constexpr unsigned none = ~0u;
  unsigned number;
  Range columns;
  int unused;
};

template <typename Tile, typename T>
struct ShortForwardMemory {
  static constexpr int mask_tile_bytes = Tile::own * Tile::others * Tile::mask_bytes;
  static constexpr int barrier_count = 3 * Tile::row_stages + 4 * Tile::stages + 2 * Tile::word_stages;

  T *q_stages, *k_stages, *v_stages;
  unsigned char* mask_stages;  // [stages] tiles
  uint32_t* all_words;         // [word_stages, own, 2] kept bits of rows
  float* all_additions;        // [stages, others] what a mask of columns adds
  RowBlockNote* notes;         // [row_stages]
  int* all_mixed;              // [stages] does a mask of columns add anything?
  // Of each row stage: q's that are full, notes' that are full, q's that are empty; of each stage: k's and v's that are
  // full, and that are empty; of each word stage: those that are full, and that are empty.
  Barrier* barriers;

  static constexpr int bytes =
      (Tile::row_stages * Tile::own_elements + 2 * Tile::stages * Tile::other_elements) * static_cast<int>(sizeof(T)) +
      Tile::stages * mask_tile_bytes +
      (Tile::word_stages * 2 * Tile::own + Tile::stages * (Tile::others + 2)) * static_cast<int>(sizeof(uint32_t)) +
      Tile::row_stages * static_cast<int>(sizeof(RowBlockNote)) + barrier_count * static_cast<int>(sizeof(Barrier));

  __device__ explicit ShortForwardMemory(void* shared)
      : q_stages(static_cast<T*>(shared)),
        k_stages(q_stages + Tile::row_stages * Tile::own_elements),
        v_stages(k_stages + Tile::stages * Tile::other_elements),
        mask_stages(reinterpret_cast<unsigned char*>(v_stages + Tile::stages * Tile::other_elements)),
        all_words(reinterpret_cast<uint32_t*>(mask_stages + Tile::stages * mask_tile_bytes)),
        all_additions(reinterpret_cast<float*>(all_words + 2 * Tile::word_stages * Tile::own)),
        notes(reinterpret_cast<RowBlockNote*>(all_additions + Tile::stages * Tile::others)),
        all_mixed(reinterpret_cast<int*>(notes + Tile::row_stages)),
        barriers(reinterpret_cast<Barrier*>(all_mixed + 2 * Tile::stages)) {}

  __device__ T* q(int stage) const { return q_stages + stage * Tile::own_elements; }
  __device__ T* k(int stage) const { return k_stages + stage * Tile::other_elements; }
  __device__ T* v(int stage) const { return v_stages + stage * Tile::other_elements; }
  __device__ unsigned char* mask(int stage) const { return mask_stages + stage * mask_tile_bytes; }
  __device__ uint32_t* words(int stage) const { return all_words + 2 * stage * Tile::own; }
  __device__ float* additions(int stage) const { return all_additions + stage * Tile::others; }

  __device__ Barrier* full_q(int stage) const { return barriers + stage; }
  __device__ Barrier* full_note(int stage) const { return full_q(stage) + Tile::row_stages; }
  __device__ Barrier* empty_q(int stage) const { return full_note(stage) + Tile::row_stages; }
  __device__ Barrier* full_k(int stage) const { return barriers + 3 * Tile::row_stages + stage; }
  __device__ Barrier* full_v(int stage) const { return full_k(stage) + Tile::stages; }
  __device__ Barrier* empty_k(int stage) const { return full_v(stage) + Tile::stages; }
  __device__ Barrier* empty_v(int stage) const { return empty_k(stage) + Tile::stages; }
  __device__ Barrier* full_words(int stage) const { return barriers + 3 * Tile::row_stages + 4 * Tile::stages + stage; }
  __device__ Barrier* empty_words(int stage) const { return full_words(stage) + Tile::word_stages; }

  // Where bits are drawn, three more warps read the notes.
  __device__ void set_up_barriers(bool drops) const {
    for (int stage = 0; stage < Tile::row_stages; ++stage) {
      set_up_barrier(full_q(stage), 1);
      set_up_barrier(full_note(stage), 1);
      set_up_barrier(empty_q(stage), Tile::warps + (drops ? warpgroup_threads / 32 - 1 : 0));
    }
    for (int stage = 0; stage < Tile::stages; ++stage) {
      set_up_barrier(full_k(stage), 1);
      set_up_barrier(full_v(stage), 1);
      set_up_barrier(empty_k(stage), Tile::warps);
      set_up_barrier(empty_v(stage), Tile::warps);
    }
    for (int stage = 0; stage < Tile::word_stages; ++stage) {
      set_up_barrier(full_words(stage), warpgroup_threads / 32);
      set_up_barrier(empty_words(stage), Tile::warps);
    }
    show_barriers_to_copies();
  }

  // Computing warps wait for what was loaded, and give it back.
  using Place = StagePlace<Tile::stages>;
  using RowPlace = StagePlace<Tile::row_stages>;
  using WordPlace = StagePlace<Tile::word_stages>;
  __device__ void wait_for_q(const RowPlace& at) const { wait_at(full_q(at.stage), at.parity); }
  __device__ void wait_for_k(const Place& at) const { wait_at(full_k(at.stage), at.parity); }
  __device__ void wait_for_v(const Place& at) const { wait_at(full_v(at.stage), at.parity); }
  __device__ void wait_for_words(const WordPlace& at) const { wait_at(full_words(at.stage), at.parity); }
  __device__ void release_q(const RowPlace& at) const { arrive_as_warp_at(empty_q(at.stage)); }
  __device__ void release_k(const Place& at) const { arrive_as_warp_at(empty_k(at.stage)); }
  __device__ void release_v(const Place& at) const { arrive_as_warp_at(empty_v(at.stage)); }
  __device__ void release_words(const WordPlace& at) const { arrive_as_warp_at(empty_words(at.stage)); }

  // Loading warps wait until they may fill a stage, all of their threads, of which one goes on to fill it.
  __device__ void wait_for_empty_q(const RowPlace& at) const { wait_as_warp_at(empty_q(at.stage), at.parity ^ 1); }
  __device__ void wait_for_note(const RowPlace& at) const { wait_patiently_at(full_note(at.stage), at.parity); }
  __device__ void wait_for_empty_k(const Place& at) const { wait_as_warp_at(empty_k(at.stage), at.parity ^ 1); }
  __device__ void wait_for_empty_v(const Place& at) const { wait_as_warp_at(empty_v(at.stage), at.parity ^ 1); }
  __device__ void wait_for_empty_words(const WordPlace& at) const {
    wait_patiently_at(empty_words(at.stage), at.parity ^ 1);
  }
};

// ---- Masks ----

// What a mask of columns adds to two columns of a tile a lane, which one warp reads.
template <typename T>
__device__ float2 additions_of_lane(const AttentionShape& n, const Head& head, int first) {
  const int column = first + static_cast<int>(threadIdx.x) % 32 * 2, columns = static_cast<int>(n.columns);
  float2 added{};
  with_mask<T>(n, head, [&](auto* mask) {
    const Addition addition(n);
    if (column < columns) added.x = addition(mask[column * n.mask_strides[3]]);
    if (column + 1 < columns) added.y = addition(mask[(column + 1) * n.mask_strides[3]]);
  });
  return added;
}

// Adds a tile of a mask with rows, [64, 64] in boxes of 128 bytes a row, whose words of 16 bytes are swizzled.
template <typename Tile, typename M>
__device__ void add_mask_tile(Sums<1, Tile::n_tiles>& sums, float scale, const unsigned char* tile) {
  constexpr int box = box_bytes / sizeof(M), word = 16 / sizeof(M);  // elements
  constexpr int words = 8 / word;                                    // of a product's columns
  const Addition addition(scale);
  const int thread = static_cast<int>(threadIdx.x), row = thread / 4 % 8, pair = thread % 4 * 2;
  const M* const first = reinterpret_cast<const M*>(tile) + (thread / 32 * Tile::warp_rows + row) * box + pair % word;
#pragma unroll
  for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_box = words * t % 8 + pair / word;
      const M* const at = first + (words * t / 8 * Tile::own + 8 * half) * box + (in_box ^ row) * word;
      const Vector<M, 2> added = load_vector<2>(at);
      sums[0][t][2 * half] += addition(added.at[0]), sums[0][t][2 * half + 1] += addition(added.at[1]);
    }
}

// ---- Loading ----

// Starts the copies of the mask's tile. One thread calls it.
template <typename Tile>
__device__ void copy_mask(unsigned char* tile, const CUtensorMap& map, const AttentionShape& n,
                          const ShortRowBlock& block, int column, Barrier* barrier) {
  constexpr int boxes = Tile::others * Tile::mask_bytes / box_bytes;
  const int head = n.mask_strides[1] != 0 ? static_cast<int>(block.head.h) : 0;
  const int batch = n.mask_strides[0] != 0 ? static_cast<int>(block.head.b) : 0;
#pragma unroll
  for (int i = 0; i < boxes; ++i)
    copy_box(tile + i * Tile::own * box_bytes, map, column * (Tile::mask_bytes / 2) + i * box_depth, head, block.first,
             batch, barrier);
}

// Takes row blocks, notes them for the others and starts the copies of their rows of q. A warp calls it.
template <typename Tile, typename T>
class RowBlockTaker {
 public:
  __device__ RowBlockTaker(const ShortForwardMaps& maps, const AttentionShape& n, const RowBlocks& blocks,
                           const ShortForwardMemory<Tile, T>& memory)
      : maps_(maps), n_(n), blocks_(blocks), memory_(memory), number_(blockIdx.x) {}

  // The next one into a row stage, or a note that there is none.
  __device__ void take(const StagePlace<Tile::row_stages>& at) {
    const bool leads = threadIdx.x % 32 == 0;
    RowBlockNote note{RowBlockNote::none, {}, 0};
    unsigned taken = 0;
    if (number_ < blocks_.count) {
      if (leads && gridDim.x < blocks_.count) taken = atomicAdd(blocks_.next, 1);
      const ShortRowBlock block = ShortRowBlock::of<Tile>(n_, blocks_, number_);
      note.number = number_;
      note.columns = range_of_others<Owner::Rows>(n_, block.head, block.first, Tile::own, Tile::others);
      memory_.wait_for_empty_q(at);
      if (leads) {
        memory_.notes[at.stage] = note;
        copy_tile<Tile, Tile::own>(memory_.q(at.stage), maps_.q, block.head.h, block.first, block.head.b,
                                   memory_.full_q(at.stage));
      }
    } else {
      memory_.wait_for_empty_q(at);
      if (leads) {
        memory_.notes[at.stage] = note;
        arrive_at(memory_.full_q(at.stage));
      }
    }
    arrive_as_warp_at(memory_.full_note(at.stage));
    number_ = gridDim.x < blocks_.count ? gridDim.x + __shfl_sync(whole_warp, taken, 0) : blocks_.count;
  }

 private:
  const ShortForwardMaps& maps_;
  const AttentionShape& n_;
  const RowBlocks& blocks_;
  const ShortForwardMemory<Tile, T>& memory_;
  unsigned number_;
};

// Where the loading warps go on with the next row block.
template <typename Tile>
struct LoadingPlaces {
  StagePlace<Tile::stages> tile;
  StagePlace<Tile::word_stages> word;
  bool is_first = true;  // nothing has been loaded
};

// Brings the tiles of k and v that a row block meets, which the first warp does alone, and draws the bits of its rows,
// of two tiles at a time: warps that drew in turn would hold up some computing warps more than others. Words are drawn
// before the stages of their tiles are empty.
template <typename Tile, bool drops, typename T>
__device__ void load_row_block(const ShortForwardMaps& maps, const AttentionShape& n, const ShortRowBlock& block,
                               const ShortForwardMemory<Tile, T>& memory, LoadingPlaces<Tile>& at) {
  constexpr int together = drops ? Tile::drawn_together : 1;  // tiles
  const int thread = static_cast<int>(threadIdx.x) - Tile::threads, warp = __shfl_sync(whole_warp, thread / 32, 0);
  const bool leads = thread == 0, has_columns = is_mask_of_columns(n);
  const Head& head = block.head;
  const int64_t kv_head = head.kv_head(n);
  const ColumnTile* const mask_tiles = tiles_of_mask(n, head);
  const KeptDraws draws(n, head);
  auto tiles_from = [&](int column) {
    return min(together, (block.columns.end - column + Tile::others - 1) / Tile::others);
  };
  auto copy = [&](int column) {
    const int tiles = tiles_from(column);
    for (int i = 0; i < tiles; ++i, at.tile.advance()) {
      const int first = column + i * Tile::others, stage = at.tile.stage;
      const bool is_mixed = has_columns && noted_tile(n, mask_tiles, first) != ColumnTile::Open;
      float2 added{};
      if (is_mixed) added = additions_of_lane<T>(n, head, first);
      memory.wait_for_empty_k(at.tile);
      if (has_columns) {
        if (is_mixed) reinterpret_cast<float2*>(memory.additions(stage))[thread] = added;
        if (leads) memory.all_mixed[stage] = is_mixed;
        __syncwarp();
      }
      if (leads) {
        copy_tile<Tile, Tile::others>(memory.k(stage), maps.k, kv_head, first, head.b, memory.full_k(stage),
                                      memory.mask_tile_bytes);
        if constexpr (Tile::mask_bytes > 0)
          copy_mask<Tile>(memory.mask(stage), maps.mask, n, block, first, memory.full_k(stage));
      }
      memory.wait_for_empty_v(at.tile);
      if (leads) copy_tile<Tile, Tile::others>(memory.v(stage), maps.v, kv_head, first, head.b, memory.full_v(stage));
    }
  };
  auto draw = [&](int column) {
    const int row = thread / Tile::drawn_together, word = thread % Tile::drawn_together, tiles = tiles_from(column);
    uint32_t words[Tile::drawn_together];
    draws.draw<Tile::drawn_together, Tile::drawn_together>(words, block.first + row, column / 32 + word);
#pragma unroll
    for (int i = 0; i < Tile::drawn_together; ++i, at.word.advance()) {
      if (i == tiles) break;
      memory.wait_for_empty_words(at.word);
      memory.words(at.word.stage)[2 * row + word] = words[i];
      arrive_as_warp_at(memory.full_words(at.word.stage));
    }
  };
  constexpr int step = together * Tile::others;
  int copied = block.columns.first;
  if (drops && warp == 0 && at.is_first && copied < block.columns.end) {
    copy(copied);
    copied += step;
  }
  at.is_first = false;
#pragma unroll 1
  for (int column = block.columns.first; column < block.columns.end; column += step) {
    if (drops) draw(column);
    if (warp > 0 || copied > column) continue;
    copy(column);
    copied += step;
  }
}

// What the loading warpgroup does: its first warp takes row blocks and starts copies, and all of its threads draw bits.
template <typename Tile, bool drops, typename T>
__device__ void load_row_blocks(const ShortForwardMaps& maps, const AttentionShape& n, const RowBlocks& blocks,
                                const ShortForwardMemory<Tile, T>& memory) {
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / 32 - Tile::warps, 0);
  if (!drops && warp > 0) return;
  RowBlockTaker<Tile, T> taker(maps, n, blocks, memory);
  LoadingPlaces<Tile> at;
#pragma unroll 1
  for (StagePlace<Tile::row_stages> row_at;; row_at.advance()) {
    if (warp == 0) taker.take(row_at);
    memory.wait_for_note(row_at);
    const RowBlockNote note = memory.notes[row_at.stage];
    if (warp > 0) memory.release_q(row_at);
    if (note.number == RowBlockNote::none) break;
    load_row_block<Tile, drops>(maps, n, ShortRowBlock::of<Tile>(n, blocks, note.number, note.columns), memory, at);
  }
}

}  // namespace plimsoll::cuda
