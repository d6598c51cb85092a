#include "kernels/cuda/attention/attention_mma_grad.cuh"
#include "kernels/cuda/attention/attention_warpgroup.cuh"
#include "kernels/cuda/attention/attention_windows.cuh"

// Serves attention_grad ("mma"). With P the probabilities, made again from lse, Z their dropout factors, dP = Z * (dy
// v^T) and delta = dy . y a row:
//   dv = (Z * P)^T dy,  dS = P * (dP - delta),  dq = scale * dS k,  dk = scale * dS^T q.
// One launch owns rows and sums dq, the other owns columns and sums dk and dv over the rows of all heads that share
// them: each sum has one owner and one order, for two more products of a tile than one launch with atomic sums takes.

namespace plimsoll::cuda {
namespace {

// Code for Hopper alone has no kernels of tiles whose heads warpgroups take there: they are never launched, and the
// assembler would take longest for them.
template <typename Tile>
inline constexpr bool is_launched = !has_warpgroups || Tile::depth < min_warpgroup_depth;

// Both kernels walk over tiles in two stages: one is computed with, the other is on its way.
template <typename Tile, typename T>
struct Stages {
  T *own_a, *own_b, *other;  // q and dy, or k and v
  float* constants;          // lse and delta of the other side's rows, or what the mask adds to its columns

  static constexpr int bytes = (2 * Tile::own + 4 * Tile::others) * Tile::pitch * static_cast<int>(sizeof(T)) +
                               2 * Tile::others * (2 + Tile::warps) * static_cast<int>(sizeof(float));

  __device__ explicit Stages(void* shared)
      : own_a(static_cast<T*>(shared)),
        own_b(own_a + Tile::own * Tile::pitch),
        other(own_b + Tile::own * Tile::pitch),
        constants(reinterpret_cast<float*>(other + 4 * Tile::others * Tile::pitch)) {}

  __device__ T* a(int stage) const { return other + stage * 2 * Tile::others * Tile::pitch; }
  __device__ T* b(int stage) const { return a(stage) + Tile::others * Tile::pitch; }
  __device__ float* of_others(int stage) const { return constants + stage * 2 * Tile::others; }
  // Kept bits where columns are owned.
  __device__ uint32_t* words(int stage) const {
    return reinterpret_cast<uint32_t*>(constants + 4 * Tile::others) + stage * Tile::warps * Tile::others;
  }
};

template <typename Tile, bool drops, typename T>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    dq_mma_kernel(AttentionShape n, bool aligned, AttentionGradCall grads, int row_tiles) {
  if constexpr (!is_launched<Tile>) {
    __trap();
    return;
  }
  extern __shared__ uint4 shared[];
  const Stages<Tile, T> tiles(shared);
  const int64_t number = blockIdx.x / row_tiles;
  const int first = (row_tiles - 1 - static_cast<int>(blockIdx.x % row_tiles)) * Tile::own;
  const Head head{number / n.heads, number % n.heads};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_first = first + warp * Tile::warp_rows, rows = static_cast<int>(n.rows);
  const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
  const int columns = static_cast<int>(n.columns);
  const Range range = range_of_others<Owner::Rows>(n, head, first, Tile::own, Tile::others);
  const T* q_rows = tiles.own_a + warp * Tile::warp_rows * Tile::pitch;
  const T* dy_rows = tiles.own_b + warp * Tile::warp_rows * Tile::pitch;
  const RowLoader<Tile, Tile::others, T> k_rows(static_cast<const T*>(grads.k) + head.k(n), n.k_step, columns, depth,
                                                aligned);
  const RowLoader<Tile, Tile::others, T> v_rows(static_cast<const T*>(grads.v) + head.v(n), n.v_step, columns,
                                                value_depth, aligned);
  const KeptDraws draws(n, head);
  auto load = [&](int stage, int column) {
    k_rows.load(tiles.a(stage), column);
    v_rows.load(tiles.b(stage), column);
    commit_copies();
    if (is_mask_of_columns(n)) load_additions<Tile, T>(tiles.of_others(stage), n, head, column);
  };
  RowLoader<Tile, Tile::own, T>(static_cast<const T*>(grads.q) + head.q(n), n.q_step, rows, depth, aligned)
      .load(tiles.own_a, first);
  RowLoader<Tile, Tile::own, T>(static_cast<const T*>(grads.dy) + head.y(n), n.heads * n.value_depth, rows, value_depth,
                                aligned)
      .load(tiles.own_b, first);
  if (range.first < range.end) load(0, range.first);
  commit_copies();

  RowConstants constants[Tile::m_tiles][2];
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      constants[m][half] = RowConstants(n, head, warp_first + lane / 4 + 16 * m + 8 * half, grads);
  const float to_log2 = n.scale * log2_e;

  Sums<Tile::m_tiles, Tile::d_tiles> dq = {};
  int stage = 0;
  for (int column = range.first; column < range.end; column += Tile::others, stage ^= 1) {
    const Place<Owner::Rows> place{warp_first + lane / 4, column + lane % 4 * 2};
    wait_for_copies<0>();
    __syncthreads();  // this tile has arrived, and the other stage is no longer read
    if (column + Tile::others < range.end) load(stage ^ 1, column + Tile::others);
    TileBits<Tile, Owner::Rows> bits;
    if (drops) bits.draw(draws, warp_first, column);
    Sums<Tile::m_tiles, Tile::n_tiles> scores, dp;
    multiply_rows<Tile>(scores, tiles.a(stage), [&](int m, int k) { return left_fragment<Tile>(q_rows, m, 16 * k); });
    multiply_rows<Tile>(dp, tiles.b(stage), [&](int m, int k) { return left_fragment<Tile>(dy_rows, m, 16 * k); });
    auto of_row = [&](int m, int, int e) -> const RowConstants& { return constants[m][e / 2]; };
    const auto* const drawn = drops ? &bits : nullptr;
    const bool is_capped = n.softcap > 0.0f;
    if (is_capped) {
      subtract_deltas<Tile>(dp, drawn, of_row);
      cap_with_slopes<Tile>(scores, dp, Cap(n));
    }
    apply_masks<Tile, Owner::Rows, T>(scores, n, head, place, first, column, tiles.of_others(stage));
    if (is_capped)
      differentiate<Tile, true>(scores, dp, to_log2, drawn, of_row);
    else
      differentiate<Tile>(scores, dp, to_log2, drawn, of_row);
    add_weighted_rows<Tile>(dq, dp, tiles.a(stage));
  }
  wait_for_copies<0>();
  __syncthreads();  // q and dy have arrived even where no column is met
  store_rows<Tile>(static_cast<T*>(grads.dq) + head.q(n), n.q_step, warp_first, rows, depth, aligned, tiles.own_a, dq,
                   [&](int, int) { return n.scale * n.dropout.factor; });
}

enum class Writes { Both, Dk, Dv };  // heads so long that the sums of both do not fit into registers take two launches

template <typename Tile, Writes writes, bool drops, typename T>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    dk_dv_mma_kernel(AttentionShape n, bool aligned, AttentionGradCall grads, int column_tiles) {
  if constexpr (!is_launched<Tile>) {
    __trap();
    return;
  }
  constexpr bool writes_dk = writes != Writes::Dv, writes_dv = writes != Writes::Dk;
  using Bits = TileBits<Tile, Owner::Columns>;
  extern __shared__ uint4 shared[];
  const Stages<Tile, T> tiles(shared);
  const int64_t number = blockIdx.x / column_tiles, shared_by = n.heads / n.kv_heads;
  const int first = static_cast<int>(blockIdx.x % column_tiles) * Tile::own;  // the longest of causal ones first
  const int64_t first_head = number % n.kv_heads * shared_by;
  const Head any{number / n.kv_heads, first_head};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_first = first + warp * Tile::warp_rows, rows = static_cast<int>(n.rows),
            columns = static_cast<int>(n.columns);
  const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
  const T* k_rows = tiles.own_a + warp * Tile::warp_rows * Tile::pitch;
  const T* v_rows = tiles.own_b + warp * Tile::warp_rows * Tile::pitch;
  const Range range = range_of_others<Owner::Columns>(n, any, first, Tile::own, Tile::others);
  const int first_row = range.first;
  const RowLoader<Tile, Tile::others, T> q_rows(static_cast<const T*>(grads.q) + any.q(n), n.q_step, rows, depth,
                                                aligned);
  const RowLoader<Tile, Tile::others, T> dy_rows(static_cast<const T*>(grads.dy) + any.y(n), n.heads * n.value_depth,
                                                 rows, value_depth, aligned);
  const KeptDraws draws(n, any);
  auto load = [&](int stage, int number_of_head, int row) {
    q_rows.load(tiles.a(stage), row, number_of_head * n.depth);
    dy_rows.load(tiles.b(stage), row, number_of_head * n.value_depth);
    if (threadIdx.x < Tile::others) {
      const RowConstants constants(n, {any.b, first_head + number_of_head}, row + static_cast<int>(threadIdx.x), grads);
      tiles.of_others(stage)[2 * threadIdx.x] = constants.lse;
      tiles.of_others(stage)[2 * threadIdx.x + 1] = constants.delta;
    }
    if (drops) Bits::draw(tiles.words(stage), draws, number_of_head * n.rows + row, first);
    commit_copies();
  };
  RowLoader<Tile, Tile::own, T>(static_cast<const T*>(grads.k) + any.k(n), n.k_step, columns, depth, aligned)
      .load(tiles.own_a, first);
  RowLoader<Tile, Tile::own, T>(static_cast<const T*>(grads.v) + any.v(n), n.v_step, columns, value_depth, aligned)
      .load(tiles.own_b, first);
  if (first_row < range.end) load(0, 0, first_row);
  commit_copies();
  const float to_log2 = n.scale * log2_e;

  Sums<Tile::m_tiles, Tile::d_tiles> dk = {}, dv = {};
  int stage = 0, number_of_head = first_row < range.end ? 0 : static_cast<int>(shared_by), row = first_row;
  while (number_of_head < shared_by) {
    const bool is_last_row = row + Tile::others >= range.end;
    const int next_head = number_of_head + is_last_row, next_row = is_last_row ? first_row : row + Tile::others;
    const Head head{any.b, first_head + number_of_head};
    const Place<Owner::Columns> place{warp_first + lane / 4, row + lane % 4 * 2};
    wait_for_copies<0>();
    __syncthreads();  // this tile has arrived, and the other stage is no longer read
    if (next_head < shared_by) load(stage ^ 1, next_head, next_row);
    Bits bits;
    if (drops) bits.read(tiles.words(stage), first, place);
    Sums<Tile::m_tiles, Tile::n_tiles> scores, dp;
    multiply_rows<Tile>(scores, tiles.a(stage), [&](int m, int k) { return left_fragment<Tile>(k_rows, m, 16 * k); });
    multiply_rows<Tile>(dp, tiles.b(stage), [&](int m, int k) { return left_fragment<Tile>(v_rows, m, 16 * k); });
    RowConstants constants[Tile::n_tiles][2];
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t) {
      const float4 pair = *reinterpret_cast<const float4*>(tiles.of_others(stage) + 2 * (8 * t + lane % 4 * 2));
      constants[t][0].lse = pair.x, constants[t][0].delta = pair.y;
      constants[t][1].lse = pair.z, constants[t][1].delta = pair.w;
    }
    auto of_row = [&](int, int t, int e) -> const RowConstants& { return constants[t][e % 2]; };
    const auto* const drawn = drops ? &bits : nullptr;
    const bool is_capped = n.softcap > 0.0f;
    if (is_capped) {
      subtract_deltas<Tile>(dp, drawn, of_row);
      cap_with_slopes<Tile>(scores, dp, Cap(n));
    }
    apply_masks<Tile, Owner::Columns, T>(scores, n, head, place, first, row, nullptr);
    if (is_capped)
      differentiate<Tile, true>(scores, dp, to_log2, drawn, of_row);
    else
      differentiate<Tile>(scores, dp, to_log2, drawn, of_row);
    if constexpr (writes_dv) add_weighted_rows<Tile>(dv, scores, tiles.b(stage));
    if constexpr (writes_dk) add_weighted_rows<Tile>(dk, dp, tiles.a(stage));
    stage ^= 1;
    number_of_head = next_head;
    row = next_row;
  }
  wait_for_copies<0>();
  __syncthreads();  // k and v have arrived even where there are no rows
  if constexpr (writes_dk)
    store_rows<Tile>(static_cast<T*>(grads.dk) + any.k(n), n.k_step, warp_first, columns, depth, aligned, tiles.own_a,
                     dk, [&](int, int) { return n.scale * n.dropout.factor; });
  if constexpr (writes_dv)
    store_rows<Tile>(static_cast<T*>(grads.dv) + any.v(n), n.v_step, warp_first, columns, value_depth, aligned,
                     tiles.own_b, dv, [&](int, int) { return n.dropout.factor; });
}

template <typename Rows, typename Columns, bool drops, typename T>
cudaError_t launch_grads(const AttentionShape& shape, bool aligned, const AttentionGradCall& grads,
                         cudaStream_t stream) {
  const int64_t heads = shape.batch * shape.heads;
  const int64_t row_tiles = (shape.rows + Rows::own - 1) / Rows::own,
                column_tiles = (shape.columns + Columns::own - 1) / Columns::own;
  if (row_tiles > 0)
    if (cudaError_t error =
            launch_mma(dq_mma_kernel<Rows, drops, T>, heads * row_tiles, Rows::threads, Stages<Rows, T>::bytes, stream,
                       shape, aligned, grads, static_cast<int>(row_tiles));
        error != cudaSuccess)
      return error;
  if (column_tiles == 0) return cudaSuccess;
  auto launch = [&](auto kernel) {
    return launch_mma(kernel, shape.batch * shape.kv_heads * column_tiles, Columns::threads, Stages<Columns, T>::bytes,
                      stream, shape, aligned, grads, static_cast<int>(column_tiles));
  };
  if constexpr (Columns::depth <= 128) {
    return launch(dk_dv_mma_kernel<Columns, Writes::Both, drops, T>);
  } else {
    if (cudaError_t error = launch(dk_dv_mma_kernel<Columns, Writes::Dk, drops, T>); error != cudaSuccess) return error;
    return launch(dk_dv_mma_kernel<Columns, Writes::Dv, drops, T>);
  }
}

}  // namespace

cudaError_t attention_grad_mma(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  const int64_t depth = shape.depth > shape.value_depth ? shape.depth : shape.value_depth;
  const bool aligned =
      are_aligned(shape, grads) && is_aligned(grads.dq, 0) && is_aligned(grads.dk, 0) && is_aligned(grads.dv, 0);
  if (takes_windows(shape, are_aligned_with_results(shape, grads)) && !grads.scores.at)
    return attention_grad_windows(shape, grads, stream);
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if (cudaError_t error = launch_deltas(shape, grads, stream); error != cudaSuccess) return error;
    if (cudaError_t error = launch_segment_tiles(shape, stream); error != cudaSuccess) return error;
    if (cudaError_t error = launch_column_tiles(shape, stream); error != cudaSuccess) return error;
    if (takes_one_pass(shape, aligned, grads)) return attention_grad_one_pass(shape, grads, stream);
    if (takes_warpgroups(depth)) return attention_grad_warpgroup(shape, aligned, grads, stream);
    auto launch = [&](auto rows_tile, auto columns_tile) {
      using Rows = decltype(rows_tile);
      using Columns = decltype(columns_tile);
      return shape.dropout.blocks > 0 ? launch_grads<Rows, Columns, true, T>(shape, aligned, grads, stream)
                                      : launch_grads<Rows, Columns, false, T>(shape, aligned, grads, stream);
    };
    if (depth <= 32) return launch(MmaTile<32, 1, 4, 32, 6>(), MmaTile<32, 1, 4, 32, 5>());
    if (depth <= 64 && shape.rows <= 64) return launch(MmaTile<64, 1, 4, 32, 3>(), MmaTile<64, 1, 4, 32, 3>());
    if (depth <= 64) return launch(MmaTile<64, 2, 4, 32, 3>(), MmaTile<64, 2, 4, 32, 2>());
    if (depth <= 128) return launch(MmaTile<128, 1, 4, 32, 3>(), MmaTile<128, 1, 4, 32, 2>());
    return launch(MmaTile<256, 1, 3, 16, 1>(), MmaTile<256, 1, 3, 16, 1>());
  });
}

}  // namespace plimsoll::cuda
