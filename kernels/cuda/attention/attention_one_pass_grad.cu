#include "kernels/cuda/attention/attention_warpgroup_grad.cuh"

#include <algorithm>

// Serves attention_grad ("one_pass") on Hopper: five products of a tile where two launches make seven. A block owns 64
// columns of one key head, whose dk and dv stay in registers, and walks over the rows; its share of a tile's dq is
// summed in memory, where blocks take turns, so that the bits are the same every time. A second warpgroup fills the
// stages and waits for the turns, so that the first does nothing but compute.
//
// Turns at a tile of rows go by the number of the columns. Blocks with neighbouring numbers belong to different heads:
// so many stand side by side that a head's block of columns is a step ahead when its next block begins. A block waits
// only for blocks with lower numbers, which the card begins first, so that it may hold any number of them.

namespace plimsoll::cuda {
namespace {

constexpr int tile_rows = one_pass_rows, block_threads = 2 * warpgroup_threads, share_buffers = 2;
constexpr int computing_registers = 208, helping_registers = 48;

// The warps of the second warpgroup.
constexpr int first_adding_warp = 4, first_loading_warp = 6, adding_threads = 64, loading_threads = 64;

using ComputingTile = WarpgroupTile<one_pass_depth, 1, 3, 2>;
struct LoadingTile : ComputingTile {
  static constexpr int threads = loading_threads;
  __device__ static int thread() { return static_cast<int>(threadIdx.x) - 32 * first_loading_warp; }
};

// Barriers of a block beside __syncthreads: where the computing or the adding threads meet, and where stages and shares
// are handed over and come back.
enum Barrier {
  computing = 1,
  adding,
  stage_is_full,
  stage_is_empty = stage_is_full + ComputingTile::stages,
  share_is_full = stage_is_empty + ComputingTile::stages,
  share_is_empty = share_is_full + share_buffers
};
constexpr int at_stage = warpgroup_threads + loading_threads, at_share = warpgroup_threads + adding_threads;

template <int threads>
__device__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}
// Counts for the others, and goes on.
template <int threads>
__device__ void arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}

// Tiles of rows or columns, from `first` to before `end`.
struct Tiles {
  int first, end;

  __device__ explicit Tiles(const Range& range)
      : first(range.first / tile_rows), end((range.end + tile_rows - 1) / tile_rows) {
    if (range.first >= range.end) end = first;
  }
  __device__ int count() const { return end - first; }
};

// The tiles of rows that a block of columns meets, those of one head after the other's.
struct Walk {
  Tiles rows;
  int heads, head = 0, tile;

  __device__ Walk(const Tiles& rows, int heads) : rows(rows), heads(heads), tile(rows.first) {}
  __device__ int steps() const { return heads * rows.count(); }
  __device__ void advance() {
    if (++tile < rows.end) return;
    tile = rows.first;
    ++head;
  }
};

// k and v are owned, q and dy pass in stages, dS and shares of dq in buffers.
template <typename Tile, typename T>
struct OnePassMemory {
  T *own_k, *own_v, *others, *ds;
  float* all_shares;     // as the threads hold them: [buffers, tiles of 8 elements, threads, 4]
  float* all_constants;  // [stages, 2, 64] lse and delta of rows
  uint32_t* all_words;   // [stages, 2, 64] kept bits

  static constexpr int ds_elements = tile_rows * tile_rows, share_elements = tile_rows * Tile::depth;
  static constexpr int bytes =
      (2 * Tile::own_elements + 2 * Tile::stages * Tile::other_elements + ds_elements) * static_cast<int>(sizeof(T)) +
      (share_buffers * share_elements + Tile::stages * Tile::others * 4) * static_cast<int>(sizeof(float));

  __device__ explicit OnePassMemory(void* shared)
      : own_k(static_cast<T*>(shared)),
        own_v(own_k + Tile::own_elements),
        others(own_v + Tile::own_elements),
        ds(others + 2 * Tile::stages * Tile::other_elements),
        all_shares(reinterpret_cast<float*>(ds + ds_elements)),
        all_constants(all_shares + share_buffers * share_elements),
        all_words(reinterpret_cast<uint32_t*>(all_constants + Tile::stages * 2 * Tile::others)) {}

  __device__ T* q(int stage) const { return others + 2 * stage * Tile::other_elements; }
  __device__ T* dy(int stage) const { return q(stage) + Tile::other_elements; }
  __device__ float* share(int buffer) const { return all_shares + buffer * share_elements; }
  __device__ float* constants(int stage) const { return all_constants + stage * 2 * Tile::others; }
  __device__ uint32_t* words(int stage) const { return all_words + stage * 2 * Tile::others; }
};

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

// Writes a warp's 16 columns of dS^T, as the tile of which dS is the transpose.
template <typename Tile, typename T>
__device__ void store_ds(T* tile, const Weights<Tile>& ds) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int column = 16 * warp + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (int k = 0; k < tile_rows / 16; ++k)
    store_matrices(tile + column * tile_rows + ((2 * k + lane / 16) ^ (lane % 8)) * 8, ds.at[k].at);
}

// Starts dq = dS * k.
template <typename Tile, typename T>
__device__ void start_dq(Sums<1, Tile::d_tiles>& dq, const T* ds_tile, uint64_t own_k) {
  const uint64_t ds = shared_matrix(ds_tile);
  begin_products();
#pragma unroll
  for (int k = 0; k < tile_rows / 16; ++k)
#pragma unroll
    for (int d = 0; d < Tile::depth; d += 64)
      start_transposed_product<T>(&dq[0][d / 8], ds + matrix_step<tile_rows>(16 * k, 0),
                                  own_k + matrix_step<Tile::own>(16 * k, d), k > 0);
  commit_products();
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

// Writes shared floats to memory, or adds them to what is there, and waits until that is done. One thread calls it.
__device__ inline void write_floats(float* to, const float* shared, int count, bool adds) {
  const int bytes = count * static_cast<int>(sizeof(float));
  if (adds)
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(shared)),
                 "r"(bytes)
                 : "memory");
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}

// Adds the last share of a tile of rows to the sums before it, if there are any, and writes dq: the adding threads'
// work. Both lie as the computing threads held them.
template <typename T>
__device__ void write_dq(T* dq, const AttentionShape& n, int first, const float* sums, const float* share) {
  constexpr int each = tile_rows * tile_rows / 4 / adding_threads, batch = 4;
  const int own = static_cast<int>(threadIdx.x) - 32 * first_adding_warp;
#pragma unroll 1
  for (int i = 0; i < each; i += batch) {
    float4 before[batch] = {};
#pragma unroll
    for (int e = 0; e < batch; ++e)
      if (sums) before[e] = __ldcg(reinterpret_cast<const float4*>(sums) + (i + e) * adding_threads + own);
#pragma unroll
    for (int e = 0; e < batch; ++e) {
      const int at = (i + e) * adding_threads + own, held_by = at % warpgroup_threads;
      const float4 last = reinterpret_cast<const float4*>(share)[at];
      const int d = at / warpgroup_threads * 8 + held_by % 4 * 2, row = first + held_by / 32 * 16 + held_by % 32 / 4;
      if (d >= n.depth) continue;
      if (row < n.rows)
        *reinterpret_cast<uint32_t*>(dq + row * n.q_step + d) =
            packed_pair<T>(before[e].x + last.x, before[e].y + last.y);
      if (row + 8 < n.rows)
        *reinterpret_cast<uint32_t*>(dq + (row + 8) * n.q_step + d) =
            packed_pair<T>(before[e].z + last.z, before[e].w + last.w);
    }
  }
}

// The columns that a tile of rows meets, of those in `open`.
__device__ inline Tiles columns_of(const AttentionShape& n, int tile, const Tiles& open) {
  Tiles columns(range_of_others<Owner::Rows>(n, tile * tile_rows, tile_rows, tile_rows));
  columns.first = max(columns.first, open.first);
  columns.end = max(columns.first, min(columns.end, open.end));
  return columns;
}

// A block: its columns, the rows that it meets, and its memory.
template <typename T>
struct Block {
  int own, first, row_tiles, column_tiles;
  Head any;  // the key head, as the first of the heads that share it
  int shared_by;
  const ColumnTile* mask_tiles;
  // The columns of its head from the first open tile to the last; every block of the head finds the same.
  Tiles open{Range{0, 0}};
  Walk walk{open, 0};
  OnePassMemory<ComputingTile, T> memory{tile_memory()};

  // Key heads are launched in groups of `grouped`, columns after columns.
  __device__ Block(const AttentionShape& n, int row_tiles, int column_tiles, int grouped)
      : row_tiles(row_tiles), column_tiles(column_tiles), shared_by(static_cast<int>(n.heads / n.kv_heads)) {
    const int group = static_cast<int>(blockIdx.x) / (grouped * column_tiles),
              in_group = static_cast<int>(blockIdx.x) % (grouped * column_tiles);
    const int heads = min(grouped, static_cast<int>(n.batch * n.kv_heads) - group * grouped);
    const int64_t head = group * grouped + in_group % heads;
    own = in_group / heads;
    first = own * tile_rows;
    any = {head / n.kv_heads, head % n.kv_heads * shared_by};
    mask_tiles = tiles_of_mask(n, any);
    open = Tiles(open_columns(n, mask_tiles));
    if (own >= open.first && own < open.end)
      walk = {Tiles(range_of_others<Owner::Columns>(n, first, tile_rows, tile_rows)), shared_by};
  }

 private:
  __device__ static Range open_columns(const AttentionShape& n, const ColumnTile* tiles) {
    Range open{0, static_cast<int>(n.columns)};
    if (tiles) narrow(open, open.end, column_tile, [&](int i) { return tiles[i] != ColumnTile::Closed; });
    return open;
  }
};

// dq of a tile of rows that see no column, by a warp.
template <typename T>
__device__ void write_zeros(T* dq, const AttentionShape& n, int first) {
  const int vectors = static_cast<int>(n.depth) / 8;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < tile_rows * vectors; i += 32)
    if (first + i / vectors < n.rows)
      *reinterpret_cast<uint4*>(dq + (first + i / vectors) * n.q_step + i % vectors * 8) = uint4{};
}

// What two warps do: add the block's share of dq of each tile when its turn comes. The first turn begins a sum, the
// last writes dq.
template <typename T>
__device__ void add_shares(const Block<T>& block, const AttentionShape& n, const AttentionGradCall& grads) {
  constexpr int share_elements = OnePassMemory<ComputingTile, T>::share_elements;
  Walk at = block.walk;
  const bool leads = threadIdx.x == 32 * first_adding_warp;
  const int steps = at.steps();
  for (int step = 0; step < steps; at.advance(), ++step) {
    const int buffer = step % share_buffers;
    const Head head{block.any.b, block.any.h + at.head};
    const Tiles columns = columns_of(n, at.tile, block.open);
    const int turn = block.own - columns.first;
    const int64_t number = (head.b * n.heads + head.h) * block.row_tiles + at.tile;
    float* const sums = grads.one_pass.sums + number * share_elements;
    int* const turns = grads.one_pass.turns + number;
    const float* const share = block.memory.share(buffer);
    meet<at_share>(share_is_full + buffer);
    if (leads)
      while (turns_taken(turns) < turn) {
      }
    if (turn + 1 == columns.count()) {
      meet<adding_threads>(adding);
      write_dq(static_cast<T*>(grads.dq) + head.q(n), n, at.tile * tile_rows, turn > 0 ? sums : nullptr, share);
    } else if (leads) {
      write_floats(sums, share, share_elements, turn > 0);
      take_turn(turns, turn);
    }
    __syncwarp();
    if (step + share_buffers < steps) arrive<at_share>(share_is_empty + buffer);
  }
}

// Writes dq of tiles of rows that see no column, each of them once among a head's blocks.
template <typename T>
__device__ void clear_rows(const Block<T>& block, const AttentionShape& n, const AttentionGradCall& grads) {
  for (int tile = block.own; tile < block.row_tiles; tile += block.column_tiles)
    if (columns_of(n, tile, block.open).count() == 0)
      for (int head = 0; head < block.shared_by; ++head)
        write_zeros(static_cast<T*>(grads.dq) + Head{block.any.b, block.any.h + head}.q(n), n, tile * tile_rows);
}

// What two warps do: fill the stages.
template <bool drops, typename T>
__device__ void load_stages(const Block<T>& block, const AttentionShape& n, const AttentionGradCall& grads) {
  using Tile = LoadingTile;
  using Rows = RowLoader<Tile, tile_rows, T>;
  constexpr int ahead = Tile::stages - 2;  // a stage is announced once the next has begun to fill
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns);
  const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
  const Head& any = block.any;
  const int steps = block.walk.steps();
  if (steps == 0) return;
  Rows(static_cast<const T*>(grads.k) + any.k(n), n.k_step, columns, depth, true).load(block.memory.own_k, block.first);
  Rows(static_cast<const T*>(grads.v) + any.v(n), n.v_step, columns, value_depth, true)
      .load(block.memory.own_v, block.first);
  const Rows q_rows(static_cast<const T*>(grads.q) + any.q(n), n.q_step, rows, depth, true);
  const Rows dy_rows(static_cast<const T*>(grads.dy) + any.y(n), n.heads * n.value_depth, rows, value_depth, true);
  const KeptDraws draws(n, any);
  Walk at = block.walk;
  int stage = 0, filled = 0;
  for (int step = 0; step < steps + ahead; ++step) {
    if (step < steps) {
      if (step >= Tile::stages) meet<at_stage>(stage_is_empty + stage);
      const int row = at.tile * tile_rows;
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
      arrive<at_stage>(stage_is_full + filled);
      filled = Tile::next(filled);
    }
    stage = Tile::next(stage);
  }
}

// What the first warpgroup does.
template <bool drops, typename T>
__device__ void compute(const Block<T>& block, const AttentionShape& n, const AttentionGradCall& grads) {
  using Tile = ComputingTile;
  const auto& memory = block.memory;
  const Head& any = block.any;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = block.first, warp_first = first + warp * Tile::warp_rows, columns = static_cast<int>(n.columns);
  const Range open = open_others<Owner::Columns>(n, first, Tile::own);
  const bool adds = is_mask_of_columns(n) && noted_tile(n, block.mask_tiles, first) != ColumnTile::Open;
  const float to_log2 = n.scale * log2_e, by = n.scale * n.dropout.factor;
  OwnAdditions<Tile> of_own{};
  if (adds) of_own.template load<T>(n, any, Place<Owner::Columns>{warp_first + lane / 4, 0});
  Sums<1, Tile::d_tiles> dk = {}, dv = {}, dq;
  Sums<1, Tile::n_tiles> scores, dp;
  Weights<Tile> weights;
  const uint64_t own_k = shared_matrix(memory.own_k), own_v = shared_matrix(memory.own_v);
  Walk at = block.walk;
  const int steps = at.steps();
  int stage = 0;
  for (int step = 0; step < steps; at.advance(), ++step) {
    const int row = at.tile * tile_rows, buffer = step % share_buffers;
    const Place<Owner::Columns> place{warp_first + lane / 4, row + lane % 4 * 2};
    meet<at_stage>(stage_is_full + stage);
    start_scores<Tile>(scores, own_k, memory.q(stage));
    start_scores<Tile>(dp, own_v, memory.dy(stage));
    wait_for_products<1>();
    settle(scores[0]);
    if (row < open.first || row + Tile::others > open.end) close_outside<Tile, Owner::Columns>(scores, n, place);
    if (adds) of_own.add_to(scores);
    const float* constants = memory.constants(stage) + lane % 4 * 2;
    const KeptColumns bits = KeptColumns::of<Tile>(memory.words(stage), first, place);
    auto of_row = [&](int kind, int t) {
      return *reinterpret_cast<const float2*>(constants + kind * Tile::others + 8 * t);
    };
    probabilities<Tile>(scores, to_log2, [&](int t, int e) {
      const float2 lse = of_row(0, t);
      return e % 2 == 0 ? lse.x : lse.y;
    });
    weights.template round<T>(scores);
    if (drops) weights.keep([&](int t, int half) { return KeptColumns::pair(bits.of_rows(t), half); });
    start_weighted_rows<Tile>(dv, weights, memory.dy(stage));
    wait_for_products<1>();
    settle(dp[0]);
    differentiate_columns<Tile, drops>(dp, scores, bits, [&](int t) { return of_row(1, t); });
    wait_for_products<0>();  // dv's weights are read no more
    weights.template round<T>(dp);
    start_weighted_rows<Tile>(dk, weights, memory.q(stage));
    store_ds<Tile>(memory.ds, weights);
    show_to_matrix_units();
    meet<warpgroup_threads>(computing);  // dS of all columns is there
    start_dq<Tile>(dq, memory.ds, own_k);
    if (step >= share_buffers) meet<at_share>(share_is_empty + buffer);
    wait_for_products<0>();
    settle(dq[0]);
    if (step + Tile::stages < steps) arrive<at_stage>(stage_is_empty + stage);
    stage = Tile::next(stage);
    float4* const share = reinterpret_cast<float4*>(memory.share(buffer)) + threadIdx.x;
#pragma unroll
    for (int t = 0; t < Tile::d_tiles; ++t)
      share[t * warpgroup_threads] =
          make_float4(dq[0][t][0] * by, dq[0][t][1] * by, dq[0][t][2] * by, dq[0][t][3] * by);
    show_to_matrix_units();  // and to the copy of the share
    arrive<at_share>(share_is_full + buffer);
  }
  settle(dk[0]);
  settle(dv[0]);
  meet<warpgroup_threads>(computing);  // nobody reads k and v any more
  store_rows<Tile>(static_cast<T*>(grads.dk) + any.k(n), n.k_step, warp_first, columns, static_cast<int>(n.depth), true,
                   memory.own_k, dk, [&](int, int) { return by; });
  store_rows<Tile>(static_cast<T*>(grads.dv) + any.v(n), n.v_step, warp_first, columns, static_cast<int>(n.value_depth),
                   true, memory.own_v, dv, [&](int, int) { return n.dropout.factor; });
}

template <bool drops, typename T>
__device__ void grad_in_one_pass(const AttentionShape& n, const AttentionGradCall& grads, int row_tiles,
                                 int column_tiles, int grouped) {
  const Block<T> block(n, row_tiles, column_tiles, grouped);
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < first_adding_warp) {
    take_registers<computing_registers>();
    return compute<drops>(block, n, grads);
  }
  give_registers<helping_registers>();
  if (warp >= first_loading_warp) return load_stages<drops>(block, n, grads);
  if (warp == first_adding_warp) clear_rows(block, n, grads);
  add_shares(block, n, grads);
}

template <bool drops, typename T>
__global__ void __launch_bounds__(block_threads, ComputingTile::blocks)
    one_pass_kernel(AttentionShape n, AttentionGradCall grads, int row_tiles, int column_tiles, int grouped) {
  if constexpr (has_warpgroups)
    grad_in_one_pass<drops, T>(n, grads, row_tiles, column_tiles, grouped);
  else
    __trap();
}

// How many key heads are launched side by side. While one block of each begins, the block before goes so many steps:
// one, so that its turn is over; where a head is causal or has a window the next block begins a row further down, and
// is one step ahead for each of the heads that share it.
int64_t grouped_heads(const AttentionShape& n, int64_t row_tiles, int64_t multiprocessors) {
  const double shared_by = static_cast<double>(n.heads / n.kv_heads);
  const double ahead = n.causal || n.window > 0 ? shared_by + 1 : 1;
  int64_t met = n.causal ? (row_tiles + 1) / 2 : row_tiles;
  if (n.window > 0) met = std::min(met, (n.causal ? 1 : 2) * ((n.window + tile_rows - 1) / tile_rows) + 1);
  const double steps = shared_by * static_cast<double>(met);
  constexpr double slack = 1.25;
  const double blocks = static_cast<double>(multiprocessors * ComputingTile::blocks);
  const auto grouped = static_cast<int64_t>(slack * ahead * blocks / steps) + 1;
  const int64_t heads = n.batch * n.kv_heads, groups = std::max<int64_t>(heads / grouped, 1);
  return (heads + groups - 1) / groups;
}

template <typename T>
cudaError_t launch(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  const int64_t row_tiles = (shape.rows + tile_rows - 1) / tile_rows,
                column_tiles = (shape.columns + tile_rows - 1) / tile_rows;
  int device = 0, multiprocessors = 0;
  if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess)
    return error;
  auto launch = [&](auto kernel) {
    return launch_mma(kernel, shape.batch * shape.kv_heads * column_tiles, block_threads,
                      OnePassMemory<ComputingTile, T>::bytes, stream, shape, grads, static_cast<int>(row_tiles),
                      static_cast<int>(column_tiles),
                      static_cast<int>(grouped_heads(shape, row_tiles, multiprocessors)));
  };
  return shape.dropout.blocks > 0 ? launch(one_pass_kernel<true, T>) : launch(one_pass_kernel<false, T>);
}

}  // namespace

bool takes_one_pass(const AttentionShape& n, bool aligned, const AttentionGradCall& grads) {
  const int64_t depth = n.depth > n.value_depth ? n.depth : n.value_depth;
  const bool is_plain = n.softcap == 0.0f && !n.slopes && !n.segments && (!n.mask || n.mask_strides[2] == 0);
  return grads.one_pass.sums && takes_warpgroups(depth) && depth <= one_pass_depth && aligned && is_plain &&
         n.rows > 0 && n.columns > 0;
}

cudaError_t attention_grad_one_pass(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return launch<T>(shape, grads, stream);
  });
}

}  // namespace plimsoll::cuda
