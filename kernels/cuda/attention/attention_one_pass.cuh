#pragma once

// What blocks of attention_one_pass_grad.cu are made of: which tiles they meet, in which order, what they share, and
// the second kind of warps, which fill the stages and add shares of dq. The kernels for shorter and for longer heads
// take some of it.

#include "kernels/cuda/attention/attention_warpgroup_grad.cuh"
#include "kernels/cuda/common/card_attributes.h"

#include <algorithm>

namespace plimsoll::cuda {

// The warps of the last warpgroup: two of them add shares of dq, every second one each, and two load tiles.
inline constexpr int one_pass_shares = 2, adding_threads = 32, loading_threads = 64;
// So many words of 16 bytes of earlier sums are brought at a time, by each thread that adds the last share.
inline constexpr int words_of_batch = 4;

// A block of `groups` computing warpgroups, which own 64 columns each, and of one that helps. Before a share is added
// as the last one, so many `batches` of what was summed before are on their way.
template <int depth, int groups, int stages, int blocks, int computing_registers_, int helping_registers_, int batches_>
struct OnePassTile : WarpgroupTile<depth, groups, stages, blocks> {
  using Base = WarpgroupTile<depth, groups, stages, blocks>;
  static constexpr int computing_registers = computing_registers_, helping_registers = helping_registers_;
  static constexpr int batches = batches_;
  static constexpr int first_adding_warp = Base::warps, first_loading_warp = first_adding_warp + one_pass_shares;
  static constexpr int block_threads = Base::threads + warpgroup_threads;
  static constexpr int share_elements = one_pass_rows * depth, share_tiles = depth / 8 / groups;
  static constexpr int share_step = share_tiles;
  static_assert(Base::others == one_pass_rows && depth == 64 * groups, "a warpgroup makes 64 elements of dq");

  // Barriers of a block beside __syncthreads: where the computing threads meet, and where stages and shares are handed
  // over and come back.
  static constexpr int computing = 1, stage_is_full = 2, stage_is_empty = stage_is_full + stages,
                       share_is_full = stage_is_empty + stages, share_is_empty = share_is_full + one_pass_shares;
  static constexpr int at_stage = Base::threads + loading_threads, at_share = Base::threads + adding_threads;
  static_assert(share_is_empty + one_pass_shares <= 16);
};

template <typename Tile>
struct LoadingTile : Tile {
  static constexpr int threads = loading_threads;
  __device__ static int thread() { return static_cast<int>(threadIdx.x) - 32 * Tile::first_loading_warp; }
};

template <int threads>
__device__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}
// Counts for the others, and goes on.
template <int threads>
__device__ void arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}

// Tiles of `size` rows or columns, from `first` to before `end`.
struct Tiles {
  int first, end;

  __device__ Tiles(const Range& range, int size) : first(range.first / size), end((range.end + size - 1) / size) {
    if (range.first >= range.end) end = first;
  }
  __device__ static Tiles between(int first, int end) { return Tiles(Range{first, end}, 1); }
  __device__ int count() const { return end - first; }
};

// The tiles of rows that a block of columns meets, from the last to the first, and each of them for all heads: so
// blocks that begin together come to a tile of a head in the order of their columns, wherever their own first row is.
struct Walk {
  Tiles rows;
  int heads, head = 0, tile;

  __device__ Walk(const Tiles& rows, int heads) : rows(rows), heads(heads), tile(rows.end - 1) {}
  __device__ int steps() const { return heads * rows.count(); }
  __device__ void advance() {
    if (++head < heads) return;
    head = 0;
    --tile;
  }
};

// k and v are owned, q and dy pass in stages, dS and shares of dq in buffers.
template <typename Tile, typename T>
struct OnePassMemory {
  T *own_k, *own_v, *others;
  T* ds;                 // [own, 64], the transpose of dS
  float* all_shares;     // as the threads hold them: [buffers, tiles of 8 elements, threads of a group, 4]
  float* all_constants;  // [stages, 2, 64] lse and delta of rows
  uint32_t* all_words;   // [stages, own / 32, 64] kept bits
  float* all_before;     // [buffers, batches, of a batch, adding threads, 4] sums that the last share comes on top of

  static constexpr int ds_elements = Tile::own * one_pass_rows, words_of_stage = Tile::own / 32 * Tile::others;
  static constexpr int before_elements = Tile::batches * words_of_batch * adding_threads * 4;
  static constexpr int bytes =
      (2 * Tile::own_elements + 2 * Tile::stages * Tile::other_elements + ds_elements) * static_cast<int>(sizeof(T)) +
      (one_pass_shares * (Tile::share_elements + before_elements) +
       Tile::stages * (2 * Tile::others + words_of_stage)) *
          static_cast<int>(sizeof(float));

  __device__ explicit OnePassMemory(void* shared)
      : own_k(static_cast<T*>(shared)),
        own_v(own_k + Tile::own_elements),
        others(own_v + Tile::own_elements),
        ds(others + 2 * Tile::stages * Tile::other_elements),
        all_shares(reinterpret_cast<float*>(ds + ds_elements)),
        all_constants(all_shares + one_pass_shares * Tile::share_elements),
        all_words(reinterpret_cast<uint32_t*>(all_constants + Tile::stages * 2 * Tile::others)),
        all_before(reinterpret_cast<float*>(all_words + Tile::stages * words_of_stage)) {}

  __device__ T* q(int stage) const { return others + 2 * stage * Tile::other_elements; }
  __device__ T* dy(int stage) const { return q(stage) + Tile::other_elements; }
  __device__ float* share(int buffer) const { return all_shares + buffer * Tile::share_elements; }
  __device__ float* before(int buffer) const { return all_before + buffer * before_elements; }
  __device__ float* constants(int stage) const { return all_constants + stage * 2 * Tile::others; }
  __device__ uint32_t* words(int stage) const { return all_words + stage * words_of_stage; }
};

// The blocks of columns that a tile of rows meets, of those in `open`.
template <typename Tile>
__device__ Tiles columns_of(const AttentionShape& n, int tile, const Tiles& open) {
  const Range range = range_of_others<Owner::Rows>(n, tile * one_pass_rows, one_pass_rows, Tile::own);
  Tiles columns(range, Tile::own);
  columns.first = max(columns.first, open.first);
  columns.end = max(columns.first, min(columns.end, open.end));
  return columns;
}

// A block: its columns, the rows that it meets, and its memory.
template <typename Tile, typename Memory>
struct Block {
  int own, first, row_tiles, column_tiles;
  Head any;  // the first of the heads that share the block's key head
  int shared_by;
  const ColumnTile* mask_tiles;
  // The columns of its head from the first open tile to the last; every block of the head finds the same.
  Tiles open{Range{0, 0}, 1};
  Walk walk{open, 0};
  Memory memory{tile_memory()};

  // Key heads, or the `parts` of them, are launched in groups of `grouped`, columns after columns.
  __device__ Block(const AttentionShape& n, int row_tiles, int column_tiles, int grouped, int parts, int number)
      : row_tiles(row_tiles), column_tiles(column_tiles), shared_by(static_cast<int>(n.heads / n.kv_heads) / parts) {
    const int group = number / (grouped * column_tiles), in_group = number % (grouped * column_tiles);
    const int of_sample = static_cast<int>(n.kv_heads) * parts;
    const int heads = min(grouped, static_cast<int>(n.batch) * of_sample - group * grouped);
    const int64_t head = group * grouped + in_group % heads;
    own = in_group / heads;
    first = own * Tile::own;
    any = {head / of_sample, head % of_sample * shared_by};
    mask_tiles = tiles_of_mask(n, any);
    open = Tiles(open_columns(n, mask_tiles), Tile::own);
    if (own >= open.first && own < open.end)
      walk = {Tiles(range_of_others<Owner::Columns>(n, first, Tile::own, one_pass_rows), one_pass_rows), shared_by};
  }

 private:
  __device__ static Range open_columns(const AttentionShape& n, const ColumnTile* tiles) {
    Range open{0, static_cast<int>(n.columns)};
    if (tiles) narrow(open, open.end, column_tile, [&](int i) { return tiles[i] != ColumnTile::Closed; });
    return open;
  }
};

// Do a mask or slopes add anything to the scores of 64 columns from `first` on?
__device__ inline bool adds_to_columns(const AttentionShape& n, const ColumnTile* mask_tiles, int first) {
  return n.slopes || (is_mask_of_columns(n) && noted_tile(n, mask_tiles, first) != ColumnTile::Open);
}

// ---- Sums in memory ----

__device__ inline int turns_taken(const int* turn) {
  int taken;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(taken) : "l"(turn) : "memory");
  return taken;
}
__device__ inline void take_turn(int* turn, int number) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(number + 1) : "memory");
}

// Writes shared floats to memory, or adds them to what is there. One thread calls it, and waits until they have been
// read, or until all is done.
__device__ inline void start_writing(float* to, const float* shared, int count, bool adds) {
  const int bytes = count * static_cast<int>(sizeof(float));
  if (adds)
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(shared)),
                 "r"(bytes)
                 : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void wait_for_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void wait_for_writes() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Adds the last share of a tile of rows to the sums before it, if there are any, and writes dq, which is `by` times
// the sum: a warp's work. Both lie as the computing threads held them, `depth` elements
// of a row count, and `before` is memory of the block.
template <typename Tile, typename T>
__device__ void write_dq(T* dq, const AttentionShape& n, int first, int depth, const float* sums, const float* share,
                         float* before, float by) {
  constexpr int of_batch = words_of_batch;
  constexpr int count = Tile::share_elements / 4 / adding_threads / of_batch;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  sums += sums ? 4 * lane : 0;
  before += 4 * lane;
  auto bring = [&](int batch) {
    if (sums && batch < count) {
      const int to = batch % Tile::batches * of_batch, from = batch * of_batch;
#pragma unroll
      for (int i = 0; i < of_batch; ++i)
        copy_async(before + (to + i) * adding_threads * 4, sums + (from + i) * adding_threads * 4, true);
    }
    commit_copies();
  };
#pragma unroll 1
  for (int batch = 0; batch < Tile::batches; ++batch) bring(batch);
#pragma unroll 1
  for (int batch = 0; batch < count; ++batch) {
    wait_for_copies<Tile::batches - 1>();
#pragma unroll
    for (int i = 0; i < of_batch; ++i) {
      const int at = (batch * of_batch + i) * adding_threads + lane, held_by = at % warpgroup_threads;
      float4 sum = reinterpret_cast<const float4*>(share)[at];
      if (sums) {
        const int in_batch = (batch % Tile::batches * of_batch + i) * adding_threads;
        const float4 earlier = reinterpret_cast<const float4*>(before)[in_batch];
        sum = make_float4(earlier.x + sum.x, earlier.y + sum.y, earlier.z + sum.z, earlier.w + sum.w);
      }
      const int d = at / warpgroup_threads * 8 + held_by % 4 * 2, row = first + held_by / 32 * 16 + held_by % 32 / 4;
      if (d >= depth) continue;
      T* const to = dq + row * n.q_step + d;
      if (row < n.rows) *reinterpret_cast<uint32_t*>(to) = packed_pair<T>(sum.x * by, sum.y * by);
      if (row + 8 < n.rows) *reinterpret_cast<uint32_t*>(to + 8 * n.q_step) = packed_pair<T>(sum.z * by, sum.w * by);
    }
    bring(batch + Tile::batches);
  }
}

// dq of a tile of rows that see no column, by a warp.
template <typename T>
__device__ void write_zeros(T* dq, const AttentionShape& n, int first) {
  const int vectors = static_cast<int>(n.depth) / 8;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < one_pass_rows * vectors; i += 32)
    if (first + i / vectors < n.rows)
      *reinterpret_cast<uint4*>(dq + (first + i / vectors) * n.q_step + i % vectors * 8) = uint4{};
}

// What a warp does: add every second of the block's shares of dq when its turn at the tile of rows comes. The first
// turn begins a sum, the last writes dq. Between a share and the next some round trips to memory pass, as many as a
// tile takes: hence two warps.
template <typename Tile, typename T>
__device__ void add_shares(const Block<Tile, OnePassMemory<Tile, T>>& block, const AttentionShape& n,
                           const AttentionGradCall& grads, int buffer) {
  Walk at = block.walk;
  const bool leads = threadIdx.x % 32 == 0;
  const float* const share = block.memory.share(buffer);
  const int steps = at.steps();
  for (int step = 0; step < steps; at.advance(), ++step) {
    if (step % one_pass_shares != buffer) continue;
    const Head head{block.any.b, block.any.h + at.head};
    const Tiles columns = columns_of<Tile>(n, at.tile, block.open);
    const int turn = block.own - columns.first;
    const int64_t number = (head.b * n.heads + head.h) * block.row_tiles + at.tile;
    float* const sums = grads.one_pass.sums + number * Tile::share_elements;
    int* const turns = grads.one_pass.turns + number;
    meet<Tile::at_share>(Tile::share_is_full + buffer);
    if (leads)
      while (turns_taken(turns) < turn) {
      }
    __syncwarp();
    if (turn + 1 == columns.count()) {
      write_dq<Tile>(static_cast<T*>(grads.dq) + head.q(n), n, at.tile * one_pass_rows, static_cast<int>(n.depth),
                     turn > 0 ? sums : nullptr, share, block.memory.before(buffer), n.scale * n.dropout.factor);
    } else if (leads) {
      start_writing(sums, share, Tile::share_elements, turn > 0);
      wait_for_writes();
      take_turn(turns, turn);
    }
    __syncwarp();
    if (step + one_pass_shares < steps) arrive<Tile::at_share>(Tile::share_is_empty + buffer);
  }
}

// Writes dq of tiles of rows that see no column, each of them once among a head's blocks.
template <typename T, typename Tile, typename Memory>
__device__ void clear_rows(const Block<Tile, Memory>& block, const AttentionShape& n, const AttentionGradCall& grads) {
  for (int tile = block.own; tile < block.row_tiles; tile += block.column_tiles)
    if (columns_of<Tile>(n, tile, block.open).count() == 0)
      for (int head = 0; head < block.shared_by; ++head)
        write_zeros(static_cast<T*>(grads.dq) + Head{block.any.b, block.any.h + head}.q(n), n, tile * one_pass_rows);
}

// ---- dS and dq ----

// Writes a warp's 16 columns of dS^T, as the tile of which dS is the transpose.
template <typename Tile, typename T>
__device__ void store_ds(T* tile, const Weights<Tile>& ds) {
  const int thread = made_here(static_cast<int>(threadIdx.x)), lane = thread % 32;
  const int column = thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
  const int place = column * one_pass_rows + (lane / 16 ^ lane % 8) * 8;
#pragma unroll
  for (int k = 0; k < one_pass_rows / 16; ++k) store_matrices(tile + (place ^ 16 * k), ds.at[k].at);
}

// Starts dq = dS * k, for a warpgroup's elements of the head. k is the matrix that begins at them.
template <typename Tile, typename T>
__device__ void start_dq(Sums<1, Tile::share_tiles>& dq, const T* ds_tile, uint64_t k) {
  const uint64_t ds = shared_matrix(ds_tile);
  begin_products();
#pragma unroll
  for (int column = 0; column < Tile::own; column += 16) {
    const uint64_t left = ds + matrix_step<Tile::own>(column, 0);
    const uint64_t right = k + matrix_step<Tile::own, Tile::box>(column, 0);
    if constexpr (Tile::share_tiles == 2)
      start_half_transposed_product<T>(dq[0], left, right, column > 0);
    else if constexpr (Tile::share_tiles == 4)
      start_narrow_transposed_product<T>(dq[0], left, right, column > 0);
    else if constexpr (Tile::share_tiles == 6)
      start_transposed_wide_product<T>(dq[0], left, right, column > 0);
    else
      start_transposed_product<T>(dq[0], left, right, column > 0);
  }
  commit_products();
}

// Writes a warpgroup's tiles of dq, each as its threads hold it, without those that the warpgroup before it makes, too.
template <typename Tile>
__device__ void store_share(float* share, const Sums<1, Tile::share_tiles>& dq) {
  const int thread = made_here(static_cast<int>(threadIdx.x));
  const int first = thread / warpgroup_threads * Tile::share_step * warpgroup_threads + thread % warpgroup_threads;
  float4* const own = reinterpret_cast<float4*>(share) + first;
#pragma unroll
  for (int t = 0; t < Tile::share_tiles; ++t)
    if (t >= Tile::share_tiles - Tile::share_step || thread < warpgroup_threads)
      own[t * warpgroup_threads] = make_float4(dq[0][t][0], dq[0][t][1], dq[0][t][2], dq[0][t][3]);
}

// ---- dk and dv of one part of several ----

// Where the sums of a key head begin: those of dk, or those of dv.
__device__ inline float* part_of_dk(const AttentionShape& n, const OnePass& one_pass, const Head& any) {
  const int64_t shared_by = n.heads / n.kv_heads, part = any.h % shared_by * one_pass.parts / shared_by;
  return one_pass.partials + ((part * n.batch + any.b) * n.columns * n.kv_heads + any.kv_head(n)) * n.depth;
}
__device__ inline float* part_of_dv(const AttentionShape& n, const OnePass& one_pass, const Head& any) {
  const int64_t shared_by = n.heads / n.kv_heads, part = any.h % shared_by * one_pass.parts / shared_by;
  return one_pass.partials + one_pass.parts * n.batch * n.columns * n.kv_heads * n.depth +
         ((part * n.batch + any.b) * n.columns * n.kv_heads + any.kv_head(n)) * n.value_depth;
}

// Writes a warp's sums, times a factor, as rows [first, first + 16) of `depth` elements.
template <int tiles>
__device__ void store_part(float* part, int64_t step, int first, int rows, int depth, const float (&sums)[tiles][4],
                           float by) {
  const int lane = static_cast<int>(threadIdx.x) % 32, d = lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + lane / 4 + 8 * half;
    if (row >= rows) continue;
    float* const to = part + row * step + d;
#pragma unroll
    for (int t = 0; t < tiles; ++t)
      if (8 * t + d < depth)
        *reinterpret_cast<float2*>(to + 8 * t) = make_float2(sums[t][2 * half] * by, sums[t][2 * half + 1] * by);
  }
}

// Sums the parts of dk and dv.
[[nodiscard]] cudaError_t sum_parts_of_heads(const AttentionShape& shape, const AttentionGradCall& grads,
                                             cudaStream_t stream);

// ---- Stages ----

// lse, in units of log 2, and delta of a tile's rows; 0 beyond the last.
template <typename Tile>
__device__ void load_row_constants(float* constants, const AttentionShape& n, const Head& head, int first,
                                   const AttentionGradCall& grads) {
  static_assert(Tile::threads == Tile::others);
  const int row = first + Tile::thread();
  const bool inside = row < n.rows;
  const int64_t at = inside ? head.lse(n, row) : 0;
  copy_word_async(constants + Tile::thread(), grads.one_pass.log2_lse + at, inside);
  copy_word_async(constants + Tile::others + Tile::thread(), grads.delta + at, inside);
}

// The loading threads' share of tiles of `count` rows of a head, 64 elements of eight rows at a time. What lies outside
// the head becomes 0.
template <typename Tile, int count, typename T>
class TileLoader {
 public:
  __device__ TileLoader(const T* head, int64_t step, int rows, int depth)
      : step_(static_cast<int>(step)), rows_(rows), depth_(depth) {
    from_ = head + row() * step + d();
  }

  // Rows [first, first + count), `offset` elements further on.
  __device__ void load(T* tile, int first, int64_t offset = 0) const {
    const T* from = from_ + int64_t{first} * step_ + offset;
    T* to = tile + Tile::template place<count>(row(), d());
    const int left = rows_ - first - row();
#pragma unroll
    for (int i = 0; i < Tile::depth; i += 64) {
      const T* at = from + i;
      const int left_here = d() + i < depth_ ? left : 0;
#pragma unroll
      for (int pass = 0; pass < count; pass += rows_per_pass) {
        copy_async(to + i * count + pass * 64, at, pass < left_here);
        at += rows_per_pass * step_;
      }
    }
  }

 private:
  static constexpr int rows_per_pass = Tile::threads / 8;
  static_assert(rows_per_pass == 8, "rows of a pass are swizzled alike");
  __device__ static int row() { return Tile::thread() / 8; }
  __device__ static int d() { return Tile::thread() % 8 * 8; }

  const T* from_;
  int step_, rows_, depth_;
};

// What two warps do: fill the stages.
template <typename ComputingTile, bool drops, typename T>
__device__ void load_stages(const Block<ComputingTile, OnePassMemory<ComputingTile, T>>& block, const AttentionShape& n,
                            const AttentionGradCall& grads) {
  using Tile = LoadingTile<ComputingTile>;
  using Rows = TileLoader<Tile, Tile::others, T>;
  using Columns = TileLoader<Tile, Tile::own, T>;
  // Of three stages, one is announced once the next has begun to fill.
  constexpr int ahead = Tile::stages - 2;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns);
  const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
  const Head& any = block.any;
  const int steps = block.walk.steps();
  if (steps == 0) return;
  Columns(static_cast<const T*>(grads.k) + any.k(n), n.k_step, columns, depth).load(block.memory.own_k, block.first);
  Columns(static_cast<const T*>(grads.v) + any.v(n), n.v_step, columns, value_depth)
      .load(block.memory.own_v, block.first);
  const Rows q_rows(static_cast<const T*>(grads.q) + any.q(n), n.q_step, rows, depth);
  const Rows dy_rows(static_cast<const T*>(grads.dy) + any.y(n), n.heads * n.value_depth, rows, value_depth);
  const KeptDraws draws(n, any);
  Walk at = block.walk;
  int stage = 0, filled = 0;
  for (int step = 0; step < steps + ahead; ++step) {
    if (step < steps) {
      if (step >= Tile::stages) meet<Tile::at_stage>(Tile::stage_is_empty + stage);
      const int row = at.tile * one_pass_rows;
      q_rows.load(block.memory.q(stage), row, at.head * n.depth);
      dy_rows.load(block.memory.dy(stage), row, at.head * n.value_depth);
      load_row_constants<Tile>(block.memory.constants(stage), n, {any.b, any.h + at.head}, row, grads);
      if (drops)
        TileBits<Tile, Owner::Columns>::draw(block.memory.words(stage), draws, at.head * n.rows + row, block.first);
      at.advance();
    }
    commit_copies();
    if (step >= ahead) {
      wait_for_copies<ahead>();
      show_to_matrix_units();
      arrive<Tile::at_stage>(Tile::stage_is_full + filled);
      filled = Tile::next(filled);
    }
    stage = Tile::next(stage);
  }
}

// ---- Launches ----

// How many key heads are launched side by side. With fewer, a head's block of columns is not far enough ahead when its
// next block begins, which then waits for turns; with more, sums of dq leave the L2 cache between two turns. While one
// block of each head begins, the block before goes so many steps ahead: one, and where the diagonal or a window moves
// on by as many rows as a block has columns, those of the heads that share them besides.
template <typename Tile>
int64_t grouped_heads(const AttentionShape& n, int64_t row_tiles, int64_t parts, int64_t multiprocessors) {
  constexpr int tiles_of_own = Tile::own / one_pass_rows;
  const double shared_by = static_cast<double>(n.heads / n.kv_heads / parts);
  const double ahead = n.causal || n.window > 0 ? tiles_of_own * shared_by + 1 : 1;
  int64_t met = n.causal ? (row_tiles + tiles_of_own) / 2 : row_tiles;
  if (n.window > 0)
    met = std::min(met, (n.causal ? 1 : 2) * ((n.window + one_pass_rows - 1) / one_pass_rows) + tiles_of_own);
  const double steps = shared_by * static_cast<double>(met);
  constexpr double slack = 1.25;
  const double blocks = static_cast<double>(multiprocessors * Tile::blocks);
  const auto grouped = static_cast<int64_t>(slack * ahead * blocks / steps) + 1;
  const int64_t heads = n.batch * n.kv_heads * parts, groups = std::max<int64_t>(heads / grouped, 1);
  return (heads + groups - 1) / groups;
}

// The kernel takes `maps` before all else, if there are any.
template <typename Tile, typename Kernel, typename... Maps>
cudaError_t launch_one_pass(Kernel kernel, int bytes, const AttentionShape& shape, const AttentionGradCall& grads,
                            cudaStream_t stream, const Maps&... maps) {
  const int64_t row_tiles = (shape.rows + one_pass_rows - 1) / one_pass_rows,
                column_tiles = (shape.columns + Tile::own - 1) / Tile::own;
  int multiprocessors = 0;
  if (cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess) return error;
  const int64_t parts = grads.one_pass.parts;
  return launch_mma(kernel, shape.batch * shape.kv_heads * parts * column_tiles, Tile::block_threads, bytes, stream,
                    maps..., shape, grads, static_cast<int>(row_tiles), static_cast<int>(column_tiles),
                    static_cast<int>(grouped_heads<Tile>(shape, row_tiles, parts, multiprocessors)));
}

// Heads of up to 96 elements, or 64 with a cap on the scores, and of more than 128.
[[nodiscard]] cudaError_t attention_grad_one_pass_short(const AttentionShape& shape, const AttentionGradCall& grads,
                                                        cudaStream_t stream);
[[nodiscard]] cudaError_t attention_grad_one_pass_long(const AttentionShape& shape, const AttentionGradCall& grads,
                                                       cudaStream_t stream);

}  // namespace plimsoll::cuda
