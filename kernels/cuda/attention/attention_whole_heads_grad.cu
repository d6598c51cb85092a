#include "kernels/cuda/attention/attention_whole_heads.cuh"

#include "kernels/cuda/attention/whole_heads.h"
#include "kernels/cuda/common/card_attributes.h"

#include <algorithm>

// Serves attention_grad ("whole_heads") on Hopper. A block takes heads one after the other. Its warpgroups own 64
// columns each, whose dk and dv stay in registers, and walk over the head's rows together, in tiles of 64. dS of all
// columns passes by shared memory, and one of the warpgroups, another one for each tile, makes dq of the tile's rows
// from it: no sum passes through memory, and no block waits for another. The next warpgroup fills the place of the tile
// before it, with a tile of the next head as a rule, and makes the deltas of its rows.

namespace plimsoll::cuda {
namespace {

template <int groups_, int stages_, int blocks_>
struct HeadTile : WarpgroupTile<64, groups_, stages_, blocks_> {
  static constexpr int others = 32, n_tiles = others / 8;  // rows of a step
  static constexpr int rows = 64;                          // of a tile
};

// Of a launch: heads, tiles of a head's rows, and columns padded to a multiple of 16.
struct HeadWork {
  int heads, tiles, columns;
};

// k and v of two heads, tiles of q and dy with their rows' lse and delta, and dS of two tiles.
template <typename Tile, typename T>
struct HeadMemory {
  static constexpr int row_bytes = 128, tile_bytes = Tile::rows * row_bytes;
  static constexpr int barrier_count = Tile::stages + 6;
  int of_columns;  // bytes of k, of v, and of dS of a tile

  __host__ __device__ explicit HeadMemory(int columns) : of_columns(columns * row_bytes) {}

  __host__ __device__ constexpr int tiles_at() const { return 4 * of_columns; }
  __host__ __device__ constexpr int ds_at() const { return tiles_at() + Tile::stages * 2 * tile_bytes; }
  __host__ __device__ constexpr int constants_at() const { return ds_at() + 2 * of_columns; }
  __host__ __device__ constexpr int barriers_at() const {
    return constants_at() + Tile::stages * 2 * Tile::rows * static_cast<int>(sizeof(float));
  }
  __host__ __device__ constexpr int bytes() const {
    return barriers_at() + barrier_count * static_cast<int>(sizeof(Barrier));
  }

  template <typename E>
  __device__ E* at(int byte) const {
    return reinterpret_cast<E*>(tile_memory() + byte);
  }
  __device__ T* k(int buffer) const { return at<T>(2 * buffer * of_columns); }
  __device__ T* v(int buffer) const { return at<T>((2 * buffer + 1) * of_columns); }
  __device__ T* q(int stage) const { return at<T>(tiles_at() + 2 * stage * tile_bytes); }
  __device__ T* dy(int stage) const { return at<T>(tiles_at() + (2 * stage + 1) * tile_bytes); }
  __device__ T* ds(int buffer) const { return at<T>(ds_at() + buffer * of_columns); }
  // [2, 64] lse and delta.
  __device__ float* constants(int stage) const { return at<float>(constants_at()) + stage * 2 * Tile::rows; }

  __device__ Barrier* barrier(int i) const { return at<Barrier>(barriers_at()) + i; }
  __device__ Barrier* tile_is_full(int stage) const { return barrier(stage); }
  __device__ Barrier* columns_are_full(int buffer) const { return barrier(Tile::stages + buffer); }
  __device__ Barrier* ds_is_full(int buffer) const { return barrier(Tile::stages + 2 + buffer); }
  __device__ Barrier* ds_is_empty(int buffer) const { return barrier(Tile::stages + 4 + buffer); }

  // By one thread.
  __device__ void set_up_barriers() const {
    constexpr int group_warps = warpgroup_threads / 32;
    for (int i = 0; i < Tile::stages; ++i) set_up_barrier(tile_is_full(i), 1 + group_warps);  // copies, and constants
    for (int i = 0; i < 2; ++i) {
      set_up_barrier(columns_are_full(i), 1);
      set_up_barrier(ds_is_full(i), Tile::warps);
      set_up_barrier(ds_is_empty(i), group_warps);
    }
    show_barriers_to_copies();
  }
};

// Starts sums = own columns * (32 rows)^T, over the first 16 * steps elements.
template <typename T, int steps>
__device__ void start_step(Sums<1, 4>& sums, uint64_t own, uint64_t rows) {
  begin_products();
#pragma unroll
  for (int d = 0; d < 16 * steps; d += 16)
    start_narrow_product<T>(sums[0], own + matrix_step<64>(0, d), rows + matrix_step<64>(0, d), d > 0);
  commit_products();
}

template <typename Tile, int depth_steps, typename T>
class WholeHeads {
 public:
  __device__ WholeHeads(const HeadMaps& maps, const AttentionShape& n, const AttentionGradCall& grads,
                        const HeadWork& work)
      : maps_(maps),
        n_(n),
        grads_(grads),
        work_(work),
        memory_(work.columns),
        warp_(__shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / 32, 0)),
        group_(warp_ / 4) {
    const int blocks = static_cast<int>(gridDim.x);
    all_tiles_ = (work.heads - static_cast<int>(blockIdx.x) + blocks - 1) / blocks * work.tiles;
  }

  __device__ void run() const {
    if (threadIdx.x == 0) {
      memory_.set_up_barriers();
      copy_columns(0);
    }
    __syncthreads();
    for (int t = group_; t < Tile::stages && t < all_tiles_; t += Tile::groups) {
      HalfTile rows;
      read(rows, t, 0);
      fill(rows, t);
    }
    int turn = 0;  // the group that finishes the next tile
#pragma unroll 1
    for (int i = 0, t = 0; t < all_tiles_; ++i) {
      wait_at(memory_.columns_are_full(i % 2), i / 2 % 2);
      const ShortHead head = head_of(i);
      OwnAdditions<Tile> additions{};
      if (is_mask_of_columns(n_))
        additions.template load<T>(n_, Head{head.b, head.h}, {first_column() + thread_row(), 0});
      Sums<1, 8> dk = {}, dv = {};
      settle(dk[0]);
      settle(dv[0]);
#pragma unroll 1
      for (int tile = 0; tile < work_.tiles; ++tile, ++t) {
        compute(dk, dv, i, t, additions);
        if (turn == group_) finish(i, t);
        turn = turn + 1 < Tile::groups ? turn + 1 : 0;
        if (turn == group_ && t > 0 && t - 1 + Tile::stages < all_tiles_) refill(t - 1);
      }
      store_columns(head, memory_.v(i % 2), dk[0], dv[0]);
    }
  }

 private:
  struct HalfTile {
    ReadRows<T, 2> own;
    uint4 dy[2];
  };

  __device__ int first_column() const { return 16 * warp_; }
  __device__ static int thread_row() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ int first_row(int i, int t) const { return (t - i * work_.tiles) * Tile::rows; }
  // The block's i-th head.
  __device__ ShortHead head_of(int i) const {
    return ShortHead(n_, static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x));
  }
  // The threads of this warpgroup.
  __device__ void meet_group() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group_), "n"(warpgroup_threads) : "memory");
  }

  // k and v of the i-th head: a thread's work.
  __device__ void copy_columns(int i) const {
    const ShortHead head = head_of(i);
    Barrier* const full = memory_.columns_are_full(i % 2);
    arrive_with_copies(full, 2 * memory_.of_columns);
    copy_box(memory_.k(i % 2), maps_.k, 0, head.h, 0, head.b, full);
    copy_box(memory_.v(i % 2), maps_.v, 0, head.h, 0, head.b, full);
  }

  // Half of the rows of the t-th of all tiles.
  __device__ void read(HalfTile& rows, int t, int half) const {
    const int i = t / work_.tiles, first = first_row(i, t) + half * Tile::rows / 2;
    const ShortHead head = head_of(i);
    rows.own.read(n_, grads_, head, first);
    rows.own.read_words(rows.dy, grads_.dy, n_, head, first);
  }
  __device__ void write(const HalfTile& rows, int stage, int half) const {
    float* const constants = memory_.constants(stage) + half * Tile::rows / 2;
#pragma unroll
    for (int p = 0; p < 2; ++p) rows.own.write(constants, p, rows.dy[p]);
  }
  // Fills a stage with the t-th of all tiles, of whose rows the first half has been read: a warpgroup's work.
  __device__ void fill(HalfTile& rows, int t) const {
    const int stage = t % Tile::stages;
    Barrier* const full = memory_.tile_is_full(stage);
    if (ReadRows<T, 2>::thread() == 0) {
      const int i = t / work_.tiles;
      const ShortHead head = head_of(i);
      arrive_with_copies(full, 2 * HeadMemory<Tile, T>::tile_bytes);
      copy_box(memory_.q(stage), maps_.q, 0, head.h, first_row(i, t), head.b, full);
      copy_box(memory_.dy(stage), maps_.dy, 0, head.h, first_row(i, t), head.b, full);
    }
    write(rows, stage, 0);
    read(rows, t, 1);
    write(rows, stage, 1);
    arrive_as_warp_at(full);
  }

  // dS of the warpgroup's columns and the rows of the i-th head's tile, the t-th of all, and what it adds to dk and dv.
  __device__ void compute(Sums<1, 8>& dk, Sums<1, 8>& dv, int i, int t, const OwnAdditions<Tile>& additions) const {
    const int stage = t % Tile::stages, buffer = t % 2, of_tile = first_row(i, t);
    const int group_first = group_ * warpgroup_rows;
    const uint64_t own_k = own_matrix<Tile>(memory_.k(i % 2)), own_v = own_matrix<Tile>(memory_.v(i % 2));
    const Range met = range_of_others<Owner::Columns>(n_, group_first, warpgroup_rows, Tile::others);
    const Range open = open_others<Owner::Columns>(n_, group_first, warpgroup_rows);
    const bool is_whole = group_first + warpgroup_rows <= n_.columns;
    const int end = min(of_tile + Tile::rows, static_cast<int>(n_.rows));
    // Where the columns meet any of the rows, dS is made of all of them.
    const bool meets = met.first < end && of_tile < met.end;
    const float to_log2 = n_.scale * log2_e;
    wait_at(memory_.ds_is_empty(buffer), t / 2 % 2 ^ 1);
    wait_at(memory_.tile_is_full(stage), t / Tile::stages % 2);  // before it is filled again, whoever meets it
    T* const ds_tile = memory_.ds(buffer);
    const int place = place_in_columns(first_column());
#pragma unroll 1
    for (int row = meets ? of_tile : end; row < end; row += Tile::others) {
      const int in_tile = row - of_tile;
      const T *q = memory_.q(stage) + in_tile * 64, *dy = memory_.dy(stage) + in_tile * 64;
      Sums<1, Tile::n_tiles> scores, dp;
      start_step<T, depth_steps>(scores, own_k, shared_matrix(q));
      start_step<T, depth_steps>(dp, own_v, shared_matrix(dy));
      wait_for_products<1>();
      settle(scores[0]);
      if (!is_whole || row < open.first || row + Tile::others > open.end)
        close_outside<Tile, Owner::Columns>(
            scores, n_,
            made_here(
                Place<Owner::Columns>{first_column() + thread_row(), row + static_cast<int>(threadIdx.x) % 4 * 2}));
      if (is_mask_of_columns(n_)) additions.add_to(scores);
      const float* const constants = memory_.constants(stage) + in_tile + threadIdx.x % 4 * 2;
      probabilities<Tile>(scores, to_log2, [&](int k, int e) {
        const float2 lse = *reinterpret_cast<const float2*>(constants + 8 * k);
        return e % 2 == 0 ? lse.x : lse.y;
      });
      Weights<Tile> weights, ds;
      weights.template round<T>(scores);
      start_weighted_rows<Tile>(dv, weights, dy);
      wait_for_products<1>();  // dP
      settle(dp[0]);
      differentiate_rounded<Tile, T>(
          dp, weights, [&](int k) { return *reinterpret_cast<const float2*>(constants + Tile::rows + 8 * k); });
      ds.template round<T>(dp);
      if (first_column() < work_.columns)
#pragma unroll
        for (int k = 0; k < 2; ++k) store_matrices(ds_tile + (place ^ (in_tile + 16 * k)), ds.at[k].at);
      start_weighted_rows<Tile>(dk, ds, q);
      show_to_matrix_units();
      wait_for_products<0>();
      settle(dk[0]);
      settle(dv[0]);
    }
    arrive_as_warp_at(memory_.ds_is_full(buffer));
  }

  // Fills the place of the t-th of all tiles again, once every warpgroup is through with it: a warpgroup's work.
  __device__ void refill(int t) const {
    HalfTile rows;
    read(rows, t + Tile::stages, 0);
    wait_at(memory_.ds_is_full(t % 2), t / 2 % 2);
    fill(rows, t + Tile::stages);
  }

  // dq of the rows of the i-th head's tile, the t-th of all, once dS of all columns is there: a warpgroup's work, for
  // which the others wait before long.
  __device__ void finish(int i, int t) const {
    const int buffer = t % 2, tile_row = first_row(i, t);
    wait_at(memory_.ds_is_full(buffer), t / 2 % 2);
    // With the first tile of this head, every warpgroup was through with k and v of the head before it.
    if (tile_row == Tile::rows && ReadRows<T, 2>::thread() == 0 && (i + 1) * work_.tiles < all_tiles_)
      copy_columns(i + 1);
    const int rows = min(Tile::rows, static_cast<int>(n_.rows) - tile_row);  // of which there is dS
    const Range met = range_of_others<Owner::Rows>(n_, tile_row, rows, 16);
    const int end = min(met.end, work_.columns);
    const uint64_t ds = shared_matrix(memory_.ds(buffer)), k = shared_matrix(memory_.k(i % 2));
    float dq[8][4] = {};
    settle(dq);
    begin_products();
#pragma unroll 1
    for (int column = met.first; column < end; column += 16)
      start_transposed_product<T>(dq, ds + matrix_step<64>(column, 0), k + matrix_step<64>(column, 0), true);
    commit_products();
    wait_for_products<0>();
    settle(dq);
    meet_group();  // nobody's products read dS any more
    const int in_tile = warp_ % 4 * 16, row = tile_row + in_tile, step = static_cast<int>(n_.q_step);
    store_sixteen_rows<T>(head_of(i).at(static_cast<T*>(grads_.dq), n_, n_.rows, row, step), step,
                          static_cast<int>(n_.rows) - row, static_cast<int>(n_.depth),
                          memory_.ds(buffer) + in_tile * 64, dq, n_.scale);
    arrive_as_warp_at(memory_.ds_is_empty(buffer));
  }

  // By way of the warp's own rows of v.
  __device__ void store_columns(const ShortHead& head, T* v, const float (&dk)[8][4], const float (&dv)[8][4]) const {
    meet_group();  // nobody's products read them any more
    const int first = first_column(), left = static_cast<int>(n_.columns) - first, depth = static_cast<int>(n_.depth);
    if (left <= 0) return;
    const auto store = [&](void* to, int64_t wide_step, const float(&sums)[8][4], float by) {
      const int step = static_cast<int>(wide_step);
      store_sixteen_rows<T>(head.at(static_cast<T*>(to), n_, n_.columns, first, step), step, left, depth,
                            v + first * 64, sums, by);
    };
    store(grads_.dv, n_.v_step, dv, 1.0f);
    store(grads_.dk, n_.k_step, dk, n_.scale);
    show_to_matrix_units();  // and to the copies that fill v again
  }

  const HeadMaps& maps_;
  const AttentionShape& n_;
  const AttentionGradCall& grads_;
  const HeadWork& work_;
  HeadMemory<Tile, T> memory_;
  int warp_, group_, all_tiles_;
};

template <typename Tile, int depth_steps, typename T>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    whole_heads_kernel(const __grid_constant__ HeadMaps maps, const __grid_constant__ AttentionShape n,
                       const __grid_constant__ AttentionGradCall grads, const __grid_constant__ HeadWork work) {
  if constexpr (has_warpgroups)
    WholeHeads<Tile, depth_steps, T>(maps, n, grads, work).run();
  else
    __trap();
}

template <typename Tile, typename T>
cudaError_t launch(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  const HeadWork work{static_cast<int>(shape.batch * shape.heads),
                      static_cast<int>((shape.rows + Tile::rows - 1) / Tile::rows),
                      static_cast<int>((shape.columns + 15) / 16 * 16)};
  HeadMaps maps;
  if (cudaError_t error = maps.fill(shape, grads, Tile::rows, work.columns); error != cudaSuccess) return error;
  int multiprocessors = 0;
  if (cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess) return error;
  const auto launch_kernel = [&](auto kernel) {
    return launch_mma(kernel, std::min(work.heads, multiprocessors * Tile::blocks), Tile::threads,
                      HeadMemory<Tile, T>(work.columns).bytes(), stream, maps, shape, grads, work);
  };
  return shape.depth <= 32 ? launch_kernel(whole_heads_kernel<Tile, 2, T>)
                           : launch_kernel(whole_heads_kernel<Tile, 4, T>);
}

}  // namespace

cudaError_t attention_grad_whole_heads(const AttentionShape& shape, const AttentionGradCall& grads,
                                       cudaStream_t stream) {
  if (shape.batch * shape.heads == 0) return cudaSuccess;
  if (are_short_heads(shape.rows, shape.columns)) return attention_grad_short_heads(shape, grads, stream);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if (shape.columns <= max_paired_columns) return launch<HeadTile<2, 2, 2>, T>(shape, grads, stream);
    if (shape.columns <= 128) return launch<HeadTile<2, 4, 1>, T>(shape, grads, stream);
    if (shape.columns <= 192) return launch<HeadTile<3, 4, 1>, T>(shape, grads, stream);
    return launch<HeadTile<4, 4, 1>, T>(shape, grads, stream);
  });
}

}  // namespace plimsoll::cuda
