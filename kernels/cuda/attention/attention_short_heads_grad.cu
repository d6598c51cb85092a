#include "kernels/cuda/attention/attention_dropout.cuh"
#include "kernels/cuda/attention/attention_whole_heads.cuh"

// Serves attention_grad ("whole_heads") on Hopper, of heads of up to 64 rows and columns: a block of one warpgroup has
// a head, all of whose products are one tile's. Four blocks on a multiprocessor copy, compute and store beside one
// another.

namespace plimsoll::cuda {
namespace {

using Tile = WarpgroupTile<64, 1, 1, 4>;

template <typename T>
struct ShortMemory {
  static constexpr int elements = max_short_rows * 64, copied_bytes = 4 * elements * sizeof(T);
  T q[elements], dy[elements], k[elements], v[elements], ds[elements];
  float constants[2 * max_short_rows];                           // lse and delta of rows
  uint32_t words[TileBits<Tile, Owner::Columns>::shared_words];  // kept bits
  Barrier is_full;
};

// Starts sums += left * right^T over the first 16 * steps elements.
template <typename T, int steps>
__device__ void start_rows(Sums<1, 8>& sums, const T* left, const T* right) {
  begin_products();
#pragma unroll
  for (int d = 0; d < 16 * steps; d += 16)
    start_product<T>(sums[0], shared_matrix(left) + matrix_step<64>(0, d), shared_matrix(right) + matrix_step<64>(0, d),
                     d > 0);
  commit_products();
}

template <int depth_steps, bool drops, typename T>
__device__ void differentiate_head(const HeadMaps& maps, const AttentionShape& n, const AttentionGradCall& grads) {
  auto& memory = *reinterpret_cast<ShortMemory<T>*>(tile_memory());
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32, first = 16 * warp;
  const int columns = static_cast<int>(n.columns), depth = static_cast<int>(n.depth);
  const ShortHead head(n, static_cast<int>(blockIdx.x));
  if (threadIdx.x == 0) {
    set_up_barrier(&memory.is_full, 1);
    show_barriers_to_copies();
    arrive_with_copies(&memory.is_full, ShortMemory<T>::copied_bytes);
    copy_box(memory.q, maps.q, 0, head.h, 0, head.b, &memory.is_full);
    copy_box(memory.k, maps.k, 0, head.h, 0, head.b, &memory.is_full);
    copy_box(memory.dy, maps.dy, 0, head.h, 0, head.b, &memory.is_full);
    copy_box(memory.v, maps.v, 0, head.h, 0, head.b, &memory.is_full);
  }
  if (drops) TileBits<Tile, Owner::Columns>::draw(memory.words, KeptDraws(n, Head{head.b, head.h}), 0, 0);
  ReadRows<T, 4> rows;
  rows.read(n, grads, head, 0);
  const Place<Owner::Columns> place{first + lane / 4, lane % 4 * 2};
  const bool adds = is_mask_of_columns(n);
  OwnAdditions<Tile> additions{};
  if (adds) additions.template load<T>(n, Head{head.b, head.h}, place);
  __syncthreads();  // the barrier is set up
  wait_at(&memory.is_full, 0);

  Sums<1, 8> scores, dp;
  start_rows<T, depth_steps>(scores, memory.k, memory.q);
  start_rows<T, depth_steps>(dp, memory.v, memory.dy);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = rows.row(i) * 64 + (rows.word() ^ rows.row(i) % 8) * 8;
    rows.write(memory.constants, i, *reinterpret_cast<const uint4*>(memory.dy + at), n.dropout.kept_share);
  }
  __syncthreads();  // constants are there
  wait_for_products<1>();
  settle(scores[0]);
  if (n.causal || n.window > 0 || first + Tile::warp_rows > columns)
    close_outside<Tile, Owner::Columns>(scores, n, made_here(place));
  if (adds) additions.add_to(scores);
  const float* const constants = memory.constants + lane % 4 * 2;
  probabilities<Tile>(scores, n.scale * log2_e, [&](int t, int e) {
    const float2 lse = *reinterpret_cast<const float2*>(constants + 8 * t);
    return e % 2 == 0 ? lse.x : lse.y;
  });
  Weights<Tile> weights, ds;
  weights.template round<T>(scores);
  const KeptColumns bits = KeptColumns::of<Tile>(memory.words, 0, place);
  if (drops) weights.keep([&](int t, int half) { return KeptColumns::pair(bits.of_rows(t), half); });
  wait_for_products<0>();
  settle(dp[0]);
  differentiate_columns<Tile, drops>(
      dp, scores, bits, [&](int t) { return *reinterpret_cast<const float2*>(constants + max_short_rows + 8 * t); });
  ds.template round<T>(dp);
#pragma unroll
  for (int i = 0; i < 4; ++i) store_matrices(memory.ds + (place_in_columns(first) ^ 16 * i), ds.at[i].at);
  show_to_matrix_units();
  Sums<1, 8> dk = {}, dv = {}, dq = {};
  settle(dk[0]);
  settle(dv[0]);
  start_weighted_rows<Tile>(dv, weights, memory.dy);
  start_weighted_rows<Tile>(dk, ds, memory.q);
  wait_for_products<1>();
  settle(dv[0]);
  __syncthreads();  // dS is there, and v is read no more
  settle(dq[0]);
  begin_products();
#pragma unroll
  for (int column = 0; column < max_short_rows; column += 16)
    start_transposed_product<T>(dq[0], shared_matrix(memory.ds) + matrix_step<64>(column, 0),
                                shared_matrix(memory.k) + matrix_step<64>(column, 0), true);
  commit_products();

  // By way of the warp's own rows of v.
  const auto store = [&](void* to, int64_t all, int64_t wide_step, const float(&sums)[8][4], float by) {
    const int step = static_cast<int>(wide_step), left = static_cast<int>(all) - first;
    if (left > 0)
      store_sixteen_rows<T>(head.at(static_cast<T*>(to), n, all, first, step), step, left, depth, memory.v + first * 64,
                            sums, by);
  };
  store(grads.dv, n.columns, n.v_step, dv[0], n.dropout.factor);
  wait_for_products<1>();
  settle(dk[0]);
  store(grads.dk, n.columns, n.k_step, dk[0], n.scale * n.dropout.factor);
  wait_for_products<0>();
  settle(dq[0]);
  store(grads.dq, n.rows, n.q_step, dq[0], n.scale * n.dropout.factor);
}

template <int depth_steps, bool drops, typename T>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    short_heads_kernel(const __grid_constant__ HeadMaps maps, const __grid_constant__ AttentionShape n,
                       const __grid_constant__ AttentionGradCall grads) {
  if constexpr (has_warpgroups)
    differentiate_head<depth_steps, drops, T>(maps, n, grads);
  else
    __trap();
}

}  // namespace

cudaError_t attention_grad_short_heads(const AttentionShape& shape, const AttentionGradCall& grads,
                                       cudaStream_t stream) {
  HeadMaps maps;
  if (cudaError_t error = maps.fill(shape, grads, max_short_rows, max_short_rows); error != cudaSuccess) return error;
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto launch = [&](auto kernel) {
      return launch_mma(kernel, shape.batch * shape.heads, Tile::threads, static_cast<int>(sizeof(ShortMemory<T>)),
                        stream, maps, shape, grads);
    };
    if (shape.dropout.blocks > 0)
      return shape.depth <= 32 ? launch(short_heads_kernel<2, true, T>) : launch(short_heads_kernel<4, true, T>);
    return shape.depth <= 32 ? launch(short_heads_kernel<2, false, T>) : launch(short_heads_kernel<4, false, T>);
  });
}

}  // namespace plimsoll::cuda
