#pragma once

// What blocks of attention_one_pass_short_grad.cu are made of: their memory, the barriers in it, the warps that load,
// and those that add shares of dq.

#include "kernels/cuda/attention/attention_one_pass.cuh"
#include "kernels/cuda/attention/attention_score_tiles.cuh"

namespace plimsoll::cuda {

// A block of two computing warpgroups, which own 64 columns each, and of one or two that help. Of the helping warps so
// many load, and two or three add shares of dq, each of them every second or third share. One warp loads; drawing
// dropout's bits takes four, and so another warpgroup, or two where heads have more than 64 elements, whose sums leave
// no registers to another warpgroup. `mask_bytes` are those of an element of a mask with rows, or 0; dS of it is stored
// where it is wanted.
template <int depth_, bool drops_, int stages, int adding_warps_, int mask_bytes_>
struct ShortTile : WarpgroupTile<depth_, 2, stages, 1> {
  using Base = WarpgroupTile<depth_, 2, stages, 1>;
  using Base::depth, Base::warps, Base::d_tiles, Base::groups, Base::others;
  static constexpr bool drops = drops_, has_row_mask = mask_bytes_ > 0, is_narrow = Base::box == narrow_box;
  static constexpr int helping_groups = drops && !is_narrow ? 2 : 1;
  static constexpr int block_threads = Base::threads + helping_groups * warpgroup_threads;
  static constexpr int computing_registers = depth > 80 ? 232 : helping_groups == 1 ? 224 : 208;
  static constexpr int helping_registers = depth > 80 ? 40 : helping_groups == 1 ? 56 : 48;
  static constexpr int registers_at_launch = (64 << 10) / block_threads / 8 * 8;
  static_assert(groups * computing_registers + helping_groups * helping_registers <=
                    (groups + helping_groups) * registers_at_launch,
                "warps would wait for registers for ever");
  static constexpr int loading_warps = !drops ? 1 : is_narrow ? 2 : 4, loading_threads = 32 * loading_warps;
  static constexpr int adding_warps = adding_warps_, mask_bytes = mask_bytes_;
  static constexpr int first_loading_warp = warps, first_adding_warp = first_loading_warp + loading_warps;
  // Is v held as left operands, so that dP reads half as much of shared memory? Bits, masks and caps leave no
  // registers.
  static constexpr bool holds_v = depth == 64 && !drops && !has_row_mask;
  // A warpgroup makes half of the elements of dq; of narrow boxes three, and so the second one begins where a box does.
  static constexpr int share_tiles = is_narrow ? 6 : d_tiles / groups, share_step = d_tiles - share_tiles;
  static constexpr int share_elements = one_pass_rows * depth;
  static constexpr int words_of_part = is_narrow ? d_tiles / 2 : d_tiles;  // of 16 bytes, of a row of a share
  // Of owned columns: some are computed while the next are loaded, where there is memory for it.
  static constexpr int slots = depth > 80 ? 1 : 2;
  static constexpr int computing = 1, loading = 2;  // where these threads meet, beside __syncthreads
  static_assert(others == one_pass_rows && loading_warps + adding_warps <= 4 * helping_groups);
};

// Columns of a key head, which a block takes one after the other; `number` tells how many were taken before.
struct OwnedColumns {
  int number, own, first;    // `own` counts tiles of columns
  int batch, first_head;     // of the heads that share the key head
  int first_tile, end_tile;  // the tiles of rows that they meet,
  int shared_by;             // of so many heads, or of none
  int first_open, end_open;  // the head's tiles of columns, from the first open one to the last
  bool adds[2];              // is something added to scores of columns, by computing warpgroup?

  __device__ Walk walk() const { return {Tiles::between(first_tile, end_tile), shared_by}; }
};

// The work of a launch: blocks take numbers from `next` until none are left.
struct ColumnsToTake {
  int row_tiles, column_tiles, grouped, parts, count;
  int* next;
};

// k and v are owned, q and dy pass in stages, dS and shares of dq in buffers.
template <typename Tile, typename T>
struct ShortMemory {
  static constexpr int own_bytes = Tile::own_elements * sizeof(T), other_bytes = Tile::other_elements * sizeof(T);
  static constexpr int ds_bytes = Tile::own * one_pass_rows * sizeof(T), ds_tiles = 2;
  static constexpr int share_bytes = Tile::share_elements * sizeof(float);
  static constexpr int before_bytes = 2 * Tile::words_of_part * adding_threads * sizeof(float4);
  static constexpr int constants_bytes = 2 * Tile::others * sizeof(float);
  static constexpr int words_bytes = Tile::drops ? Tile::own / 32 * Tile::others * sizeof(uint32_t) : 0;
  static constexpr int mask_tile_bytes = Tile::others * Tile::own * Tile::mask_bytes;
  static constexpr int barrier_count = 2 * (Tile::slots + Tile::stages + Tile::adding_warps + 1);

  static constexpr int others_at = 2 * Tile::slots * own_bytes;
  static constexpr int mask_at = others_at + 2 * Tile::stages * other_bytes;
  static constexpr int ds_at = mask_at + mask_tile_bytes, shares_at = ds_at + ds_tiles * ds_bytes;
  static constexpr int before_at = shares_at + Tile::adding_warps * share_bytes;
  static constexpr int constants_at = before_at + Tile::adding_warps * before_bytes;
  static constexpr int words_at = constants_at + Tile::stages * constants_bytes;
  static constexpr int barriers_at = words_at + Tile::stages * words_bytes;
  static constexpr int columns_at = barriers_at + barrier_count * sizeof(Barrier);
  static constexpr int bytes = columns_at + Tile::slots * sizeof(OwnedColumns);
  static_assert(bytes <= 227 << 10);

  template <typename E>
  __device__ E* at(int byte) const {
    return reinterpret_cast<E*>(tile_memory() + byte);
  }
  __device__ T* own_k(int slot) const { return at<T>(2 * slot * own_bytes); }
  __device__ T* own_v(int slot) const { return at<T>((2 * slot + 1) * own_bytes); }
  __device__ OwnedColumns& columns(int slot) const { return at<OwnedColumns>(columns_at)[slot]; }
  __device__ T* q(int stage) const { return at<T>(others_at + 2 * stage * other_bytes); }
  __device__ T* dy(int stage) const { return at<T>(others_at + (2 * stage + 1) * other_bytes); }
  // [2, 64] lse and delta of rows, and [own / 32, 64] kept bits.
  __device__ float* constants(int stage) const { return at<float>(constants_at + stage * constants_bytes); }
  __device__ uint32_t* words(int stage) const { return at<uint32_t>(words_at + stage * words_bytes); }
  // [64, own] of the mask, and of dS, or [own, 64] the transpose of dS where no mask has rows.
  __device__ void* mask() const { return at<unsigned char>(mask_at); }
  __device__ T* ds(int tile) const { return at<T>(ds_at + tile * ds_bytes); }
  // As the threads hold it: [tiles of 8 elements, threads of a group, 4]; and two parts of the sums that it comes on
  // top of.
  __device__ float* share(int buffer) const { return at<float>(shares_at + buffer * share_bytes); }
  __device__ float4* before(int buffer) const { return at<float4>(before_at + buffer * before_bytes); }

  __device__ Barrier* barrier(int i) const { return at<Barrier>(barriers_at) + i; }
  __device__ Barrier* own_is_full(int slot) const { return barrier(slot); }
  __device__ Barrier* own_is_empty(int slot) const { return barrier(Tile::slots + slot); }
  __device__ Barrier* stage_is_full(int stage) const { return barrier(2 * Tile::slots + stage); }
  __device__ Barrier* stage_is_empty(int stage) const { return stage_is_full(Tile::stages + stage); }
  __device__ Barrier* share_is_full(int buffer) const { return barrier(2 * (Tile::slots + Tile::stages) + buffer); }
  __device__ Barrier* share_is_empty(int buffer) const { return share_is_full(Tile::adding_warps + buffer); }
  __device__ Barrier* mask_is_full() const { return share_is_full(2 * Tile::adding_warps); }
  __device__ Barrier* mask_is_empty() const { return mask_is_full() + 1; }

  // By one thread.
  __device__ void set_up_barriers() const {
    for (int i = 0; i < Tile::slots; ++i) {
      set_up_barrier(own_is_full(i), 1);
      set_up_barrier(own_is_empty(i), Tile::warps + Tile::adding_warps);
    }
    for (int i = 0; i < Tile::stages; ++i) {
      // The copies of tiles, those of constants by each thread, and kept bits by each warp.
      set_up_barrier(stage_is_full(i), 1 + Tile::loading_threads + Tile::loading_warps);
      set_up_barrier(stage_is_empty(i), Tile::warps);
    }
    for (int i = 0; i < Tile::adding_warps; ++i) {
      set_up_barrier(share_is_full(i), Tile::warps);
      set_up_barrier(share_is_empty(i), 1);
    }
    set_up_barrier(mask_is_full(), 1);
    set_up_barrier(mask_is_empty(), Tile::warps);
    show_barriers_to_copies();
  }
};

// ---- Own rows as left operands ----

#define PLIMSOLL_TILE(t) "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
#define PLIMSOLL_HELD_PRODUCT(type)                                                                                 \
  asm volatile(                                                                                                     \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                                  \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                                   \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"                     \
      : PLIMSOLL_TILE(0), PLIMSOLL_TILE(1), PLIMSOLL_TILE(2), PLIMSOLL_TILE(3), PLIMSOLL_TILE(4), PLIMSOLL_TILE(5), \
        PLIMSOLL_TILE(6), PLIMSOLL_TILE(7)                                                                          \
      : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "l"(right), "r"(static_cast<int>(adds)))

// sum (+)= left * right^T, right being [64, 16] in shared memory; sum is 8 tiles of 64 x 8.
template <typename T>
__device__ void start_held_product(float (*sum)[4], const LeftFragment& left, uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_HELD_PRODUCT("bf16");
  else
    PLIMSOLL_HELD_PRODUCT("f16");
}
#undef PLIMSOLL_HELD_PRODUCT
#undef PLIMSOLL_TILE

// A warp's rows of an owned tile of 64 elements, of which products then read the other tile alone from shared memory.
template <typename Tile>
struct HeldRows {
  LeftFragment at[Tile::depth / 16];

  template <typename T>
  __device__ void load(const T* tile) {
    const int thread = static_cast<int>(threadIdx.x), row = thread / 32 * Tile::warp_rows + thread % 16;
#pragma unroll
    for (int i = 0; i < Tile::depth / 16; ++i)
      load_matrices(at[i].at, tile + Tile::template place<Tile::own>(row, 16 * i + thread % 32 / 16 * 8));
  }
  // As start_scores does.
  template <typename T>
  __device__ void start_scores(Sums<1, Tile::n_tiles>& sums, const T* other_tile) const {
    const uint64_t other = Tile::template matrix<Tile::others>(other_tile);
    begin_products();
#pragma unroll
    for (int i = 0; i < Tile::depth / 16; ++i)
      start_held_product<T>(sums[0], at[i], other + matrix_step<Tile::others, Tile::box>(0, 16 * i), i > 0);
    commit_products();
  }
};

// ---- Shares of dq ----

// A part of a share, which a warp goes through at a time: so many words of 16 bytes of two rows of each thread, all
// elements or half of them.
template <typename Tile>
struct SharePart {
  static constexpr int words = Tile::words_of_part, of_rows = Tile::d_tiles / words;
  static constexpr int count = warpgroup_threads / adding_threads * of_rows;
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int first(int part) {
    return part / of_rows * adding_threads + part % of_rows * words * warpgroup_threads + lane();
  }
};

// Brings a part of the sums before a share, if there are any. Two parts are on their way at a time.
template <typename Tile>
__device__ void bring_sums(float4* before, const float* sums, int part) {
  using Part = SharePart<Tile>;
  if (sums && part < Part::count) {
    float4* const to = before + part % 2 * Part::words * adding_threads + Part::lane();
    const float4* const from = reinterpret_cast<const float4*>(sums) + Part::first(part);
#pragma unroll
    for (int i = 0; i < Part::words; ++i) copy_async(to + i * adding_threads, from + i * warpgroup_threads, true);
  }
  commit_copies();
}

// Adds the last share of a tile of rows to the sums before it, if there are any, of which the first two parts are on
// their way, and writes dq, which is `by` times the sum: a warp's work.
template <typename Tile, typename T>
__device__ void write_rows_of_dq(T* dq, const AttentionShape& n, int first, const float* sums, const float* share,
                                 float4* before, float by) {
  using Part = SharePart<Tile>;
  const int lane = Part::lane(), depth = static_cast<int>(n.depth);
  int d = lane % 4 * 2;
  T* to = dq + (first + lane / 4) * n.q_step + d;
#pragma unroll 1
  for (int part = 0; part < Part::count; ++part) {
    wait_for_copies<1>();
    const int row = first + part / Part::of_rows * 16 + lane / 4;
    const float4* const earlier = before + part % 2 * Part::words * adding_threads + lane;
    const float4* const last = reinterpret_cast<const float4*>(share) + Part::first(part);
#pragma unroll
    for (int i = 0; i < Part::words; ++i) {
      float4 sum = last[i * warpgroup_threads];
      if (sums) {
        const float4 other = earlier[i * adding_threads];
        sum = make_float4(other.x + sum.x, other.y + sum.y, other.z + sum.z, other.w + sum.w);
      }
      if (8 * i + d >= depth) continue;
      T* const here = to + 8 * i;
      if (row < n.rows) *reinterpret_cast<uint32_t*>(here) = packed_pair<T>(sum.x * by, sum.y * by);
      if (row + 8 < n.rows) *reinterpret_cast<uint32_t*>(here + 8 * n.q_step) = packed_pair<T>(sum.z * by, sum.w * by);
    }
    constexpr int half = 8 * Part::words;
    if (Part::of_rows == 1)
      to += 16 * n.q_step;
    else if (part % 2 == 0)
      d += half, to += half;
    else
      d -= half, to += 16 * n.q_step - half;
    bring_sums<Tile>(before, sums, part + 2);
  }
}

// What an adding warp does with a share: add it when its turn at the tile of rows comes. The first turn begins a sum,
// the last writes dq. Turns are waited for before the share is there, and sums are on their way then. The share's place
// is given back once it has been read, before its sum is in memory.
template <typename Tile, typename T>
__device__ void add_share(const ShortMemory<Tile, T>& memory, const AttentionShape& n, const AttentionGradCall& grads,
                          const Head& head, int row_tiles, int tile, int turn, bool is_last, int buffer,
                          uint32_t parity) {
  const bool leads = threadIdx.x % 32 == 0;
  const int64_t number = (head.b * n.heads + head.h) * row_tiles + tile;
  float* const sums = grads.one_pass.sums + number * Tile::share_elements;
  int* const turns = grads.one_pass.turns + number;
  const float* const earlier = turn > 0 ? sums : nullptr;
  if (leads)
    while (turns_taken(turns) < turn) {
    }
  __syncwarp();
  if (is_last) {
    bring_sums<Tile>(memory.before(buffer), earlier, 0);
    bring_sums<Tile>(memory.before(buffer), earlier, 1);
  }
  wait_at(memory.share_is_full(buffer), parity);
  if (is_last) {
    write_rows_of_dq<Tile>(static_cast<T*>(grads.dq) + head.q(n), n, tile * one_pass_rows, earlier,
                           memory.share(buffer), memory.before(buffer),
                           n.scale * (Tile::has_row_mask ? 1.0f : n.dropout.factor));
  } else if (leads) {
    start_writing(sums, memory.share(buffer), Tile::share_elements, turn > 0);
    wait_for_reads();
  }
  arrive_as_warp_at(memory.share_is_empty(buffer));
  if (leads && !is_last) {
    wait_for_writes();
    take_turn(turns, turn);
  }
}

template <typename Tile, typename T>
__device__ void add_shares(const ShortMemory<Tile, T>& memory, const AttentionShape& n, const AttentionGradCall& grads,
                           const ColumnsToTake& work, int buffer) {
  uint32_t parity = 0;
  int next_buffer = 0;
#pragma unroll 1
  for (StagePlace<Tile::slots> slot;; slot.advance()) {
    wait_at(memory.own_is_full(slot.stage), slot.parity);
    const OwnedColumns columns = memory.columns(slot.stage);
    arrive_as_warp_at(memory.own_is_empty(slot.stage));
    if (columns.number >= work.count) return;
    Walk at = columns.walk();
    const int steps = at.steps();
#pragma unroll 1
    for (int step = 0; step < steps; at.advance(), ++step) {
      const bool is_own = next_buffer == buffer;
      next_buffer = next_buffer + 1 < Tile::adding_warps ? next_buffer + 1 : 0;
      if (!is_own) continue;
      const Tiles met = columns_of<Tile>(n, at.tile, Tiles::between(columns.first_open, columns.end_open));
      const int turn = columns.own - met.first;
      const Head head{columns.batch, columns.first_head + at.head};
      add_share(memory, n, grads, head, work.row_tiles, at.tile, turn, turn + 1 == met.count(), buffer, parity);
      parity ^= 1;
    }
  }
}

// ---- Loading ----

// What copies of boxes know of the tensors.
struct AttentionGradMaps {
  CUtensorMap q, dy, k, v;
  CUtensorMap mask, scores;  // where the mask has rows

  // For boxes of so many rows and columns, and of so many elements.
  [[nodiscard]] cudaError_t fill(const AttentionShape& n, const AttentionGradCall& grads, int rows, int columns,
                                 int elements) {
    for (cudaError_t error :
         {map_rows(q, grads.q, n.batch, n.rows, n.heads, n.depth, n.q_step, rows, elements),
          map_rows(dy, grads.dy, n.batch, n.rows, n.heads, n.value_depth, n.heads * n.value_depth, rows, elements),
          map_rows(k, grads.k, n.batch, n.columns, n.kv_heads, n.depth, n.k_step, columns, elements),
          map_rows(v, grads.v, n.batch, n.columns, n.kv_heads, n.value_depth, n.v_step, columns, elements)})
      if (error != cudaSuccess) return error;
    return cudaSuccess;
  }
  // The mask, and dS where it is wanted, which has elements of 2 bytes, for boxes of so many rows.
  [[nodiscard]] cudaError_t fill_scores(const AttentionShape& n, const ScoreGrads& grads, int64_t mask_bytes,
                                        int rows) {
    const int64_t batch = n.mask_strides[0] != 0 ? n.batch : 1, heads = n.mask_strides[1] != 0 ? n.heads : 1;
    const int64_t pitch = n.mask_strides[2];
    if (cudaError_t error = map_matrices(mask, n.mask, batch, heads, n.rows, n.columns, pitch, mask_bytes, rows);
        error != cudaSuccess || !grads.at)
      return error;
    return map_matrices(scores, grads.at, n.batch, n.heads, n.rows, n.columns, grads.pitch, 2, rows);
  }
};

// Starts the copies of two tiles of `rows` rows of a head: of q and dy, or of k and v. One thread calls it.
template <typename Tile, int rows, typename T>
__device__ void copy_tiles(T* first_tile, const CUtensorMap& first, T* second_tile, const CUtensorMap& second, int head,
                           int row, int batch, Barrier* barrier) {
  arrive_with_copies(barrier, 2 * rows * Tile::depth * static_cast<int>(sizeof(T)));
#pragma unroll
  for (int d = 0; d < Tile::depth; d += Tile::box) copy_box(first_tile + d * rows, first, d, head, row, batch, barrier);
#pragma unroll
  for (int d = 0; d < Tile::depth; d += Tile::box)
    copy_box(second_tile + d * rows, second, d, head, row, batch, barrier);
}

// Starts the copies of the mask's tile. One thread calls it.
template <typename Tile>
__device__ void copy_mask(void* tile, const CUtensorMap& map, const AttentionShape& n, int head, int row, int batch,
                          int first_column, Barrier* barrier) {
  constexpr int boxes = Tile::own * Tile::mask_bytes / box_bytes;
  const int of_head = n.mask_strides[1] != 0 ? head : 0, of_batch = n.mask_strides[0] != 0 ? batch : 0;
  arrive_with_copies(barrier, boxes * Tile::others * box_bytes);
#pragma unroll
  for (int i = 0; i < boxes; ++i)
    copy_box(static_cast<unsigned char*>(tile) + i * Tile::others * box_bytes, map,
             first_column * (Tile::mask_bytes / 2) + i * box_depth, of_head, row, of_batch, barrier);
}

// Writes zeros of dS where a block's columns meet no row: a warp's work.
template <typename Tile, typename T>
__device__ void clear_scores(const OwnedColumns& columns, int heads, int row_tiles, const AttentionShape& n,
                             const AttentionGradCall& grads) {
  constexpr int length = 8, words = Tile::own / length, rows_per_pass = 32 / words;
  const int lane = static_cast<int>(threadIdx.x) % 32, column = columns.first + lane % words * length;
  for (int head = columns.first_head; head < columns.first_head + heads; ++head) {
    T* const at = static_cast<T*>(grads.scores.at) + (columns.batch * n.heads + head) * n.rows * grads.scores.pitch;
    for (int tile = 0; tile < row_tiles; ++tile) {
      if (tile >= columns.first_tile && tile < columns.end_tile) continue;
      const int end = min((tile + 1) * one_pass_rows, static_cast<int>(n.rows));
      for (int row = tile * one_pass_rows + lane / words; row < end && column < grads.scores.pitch;
           row += rows_per_pass)
        *reinterpret_cast<uint4*>(at + row * grads.scores.pitch + column) = uint4{};
    }
  }
}

// The kept bits of a tile that a loading thread draws, two words of a row at a time, which share the keys of the
// rounds.
template <typename Tile>
struct DrawnWords {
  static constexpr int pairs = Tile::own / 64 * Tile::others / Tile::loading_threads;
  static_assert(pairs * Tile::loading_threads == Tile::own / 64 * Tile::others);
  uint32_t words[pairs][2];

  __device__ void draw(const KeptDraws& draws, int thread, int64_t first_row, int first_column) {
#pragma unroll
    for (int i = 0; i < pairs; ++i) {
      const int at = thread + i * Tile::loading_threads;
      draws.draw<2, 1>(words[i], first_row + at % Tile::others, first_column / 32 + at / Tile::others * 2);
    }
  }
  __device__ void store(uint32_t* to, int thread) const {
#pragma unroll
    for (int i = 0; i < pairs; ++i) {
      const int at = thread + i * Tile::loading_threads;
      uint32_t* const pair = to + at / Tile::others * 2 * Tile::others + at % Tile::others;
      pair[0] = words[i][0];
      pair[Tile::others] = words[i][1];
    }
  }
};

// lse, in units of log 2, and delta of a tile's rows; 0 beyond the last.
template <typename Tile>
__device__ void load_row_constants(float* constants, const AttentionShape& n, const Head& head, int thread, int first,
                                   const AttentionGradCall& grads) {
#pragma unroll
  for (int i = thread; i < Tile::others; i += Tile::loading_threads) {
    const bool inside = first + i < n.rows;
    const int64_t at = inside ? head.lse(n, first + i) : 0;
    copy_word_async(constants + i, grads.one_pass.log2_lse + at, inside);
    copy_word_async(constants + Tile::others + i, grads.delta + at, inside);
  }
}

// Here a block's memory outlives the columns that it owns.
struct NoMemory {
  __device__ explicit NoMemory(void*) {}
};
template <typename Tile>
using ShortBlock = Block<Tile, NoMemory>;

template <typename Tile>
__device__ OwnedColumns owned_columns(const ShortBlock<Tile>& block, const AttentionShape& n, int number) {
  const auto adds = [&](int group) {
    return adds_to_columns(n, block.mask_tiles, block.first + group * warpgroup_rows);
  };
  const Tiles& rows = block.walk.rows;
  return {number,
          block.own,
          block.first,
          static_cast<int>(block.any.b),
          static_cast<int>(block.any.h),
          rows.first,
          rows.end,
          block.walk.heads,
          block.open.first,
          block.open.end,
          {adds(0), adds(1)}};
}

// Takes columns and begins to fill a slot with them: a warp's work.
template <typename Tile, typename T>
__device__ void take_columns(int slot, uint32_t parity, const AttentionGradMaps& maps,
                             const ShortMemory<Tile, T>& memory, const AttentionShape& n,
                             const AttentionGradCall& grads, const ColumnsToTake& work) {
  const bool leads = threadIdx.x % 32 == 0;
  OwnedColumns& columns = memory.columns(slot);
  Barrier* const is_full = memory.own_is_full(slot);
  if (leads) {
    wait_at(memory.own_is_empty(slot), parity ^ 1);
    columns.number = atomicAdd(work.next, 1);
    if (columns.number >= work.count) arrive_at(is_full);
  }
  __syncwarp();
  if (columns.number >= work.count) return;
  const ShortBlock<Tile> block(n, work.row_tiles, work.column_tiles, work.grouped, work.parts, columns.number);
  if (leads) {
    columns = owned_columns<Tile>(block, n, columns.number);
    copy_tiles<Tile, Tile::own>(memory.own_k(slot), maps.k, memory.own_v(slot), maps.v,
                                static_cast<int>(block.any.kv_head(n)), columns.first, columns.batch, is_full);
  }
  clear_rows<T>(block, n, grads);
  if (Tile::has_row_mask && grads.scores.at && !grads.scores.skips_tiles) {
    __syncwarp();
    clear_scores<Tile, T>(columns, block.shared_by, work.row_tiles, n, grads);
  }
}

// Fills a stage, and then the mask's tile. Bits are drawn before the stage is empty.
template <typename Tile, typename T>
__device__ void load_stage(const StagePlace<Tile::stages>& at, uint32_t mask_parity, const AttentionGradMaps& maps,
                           const ShortMemory<Tile, T>& memory, const OwnedColumns& columns, const KeptDraws& draws,
                           int head, int row, const AttentionShape& n, const AttentionGradCall& grads, int thread) {
  DrawnWords<Tile> drawn;
  if (Tile::drops) drawn.draw(draws, thread, head * n.rows + row, columns.first);
  wait_at(memory.stage_is_empty(at.stage), at.parity ^ 1);
  Barrier* const is_full = memory.stage_is_full(at.stage);
  const Head of_rows{columns.batch, columns.first_head + head};
  if (thread == 0)
    copy_tiles<Tile, Tile::others>(memory.q(at.stage), maps.q, memory.dy(at.stage), maps.dy,
                                   static_cast<int>(of_rows.h), row, columns.batch, is_full);
  load_row_constants<Tile>(memory.constants(at.stage), n, of_rows, thread, row, grads);
  arrive_after_own_copies(is_full);
  if (Tile::drops) drawn.store(memory.words(at.stage), thread);
  arrive_as_warp_at(is_full);
  if (Tile::has_row_mask && thread == 0) {
    wait_at(memory.mask_is_empty(), mask_parity ^ 1);
    copy_mask<Tile>(memory.mask(), maps.mask, n, static_cast<int>(of_rows.h), row, columns.batch, columns.first,
                    memory.mask_is_full());
  }
}

// What the loading warps do.
template <typename Tile, typename T>
__device__ void load(const AttentionGradMaps& maps, const ShortMemory<Tile, T>& memory, const AttentionShape& n,
                     const AttentionGradCall& grads, const ColumnsToTake& work) {
  const int thread = static_cast<int>(threadIdx.x) - 32 * Tile::first_loading_warp;
  StagePlace<Tile::stages> at;
  StagePlace<1> mask;
#pragma unroll 1
  for (StagePlace<Tile::slots> slot;; slot.advance()) {
    if (thread < 32) take_columns<Tile>(slot.stage, slot.parity, maps, memory, n, grads, work);
    meet<Tile::loading_threads>(Tile::loading);
    const OwnedColumns& columns = memory.columns(slot.stage);
    if (columns.number >= work.count) return;
    const KeptDraws draws(n, {columns.batch, columns.first_head});
#pragma unroll 1
    for (int tile = columns.end_tile - 1; tile >= columns.first_tile; --tile)
#pragma unroll 1
      for (int head = 0; head < columns.shared_by; ++head, at.advance(), mask.advance())
        load_stage<Tile>(at, mask.parity, maps, memory, columns, draws, head, tile * one_pass_rows, n, grads, thread);
    if (Tile::slots == 1) meet<Tile::loading_threads>(Tile::loading);  // nobody reads what the next columns replace
  }
}

}  // namespace plimsoll::cuda
