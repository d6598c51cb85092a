#include "kernels/cuda/attention/attention_softmax.cuh"
#include "kernels/cuda/attention/attention_warpgroup.cuh"
#include "kernels/cuda/attention/attention_windows.cuh"

// Serves attention ("mma"): forward as in Dao (2023). Reads q and writes y once; k and v are read once for each tile of
// rows. While scores are computed v is on its way, and the next k while they become probabilities.

namespace plimsoll::cuda {
namespace {

// k and v of two tiles of columns: one is computed with, the other is on its way.
template <typename Tile>
struct ForwardTiles {
  static constexpr int elements = (Tile::own + 4 * Tile::others) * Tile::pitch;
  static constexpr int bytes = elements * 2 + 2 * Tile::others * static_cast<int>(sizeof(float));
};

template <typename Tile, bool drops, typename T>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    attention_mma_kernel(AttentionShape n, bool aligned, AttentionCall call, int row_tiles) {
  extern __shared__ uint4 shared[];
  const T *q = static_cast<const T*>(call.q), *k = static_cast<const T*>(call.k), *v = static_cast<const T*>(call.v);
  T *q_tile = reinterpret_cast<T*>(shared), *tiles = q_tile + Tile::own * Tile::pitch;
  float* additions = reinterpret_cast<float*>(q_tile + ForwardTiles<Tile>::elements);
  // The longest rows of causal attention come first.
  const int64_t number = blockIdx.x / row_tiles;
  const int first = (row_tiles - 1 - static_cast<int>(blockIdx.x % row_tiles)) * Tile::own;
  const Head head{number / n.heads, number % n.heads};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_first = first + warp * Tile::warp_rows, rows = static_cast<int>(n.rows);
  const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
  const int columns = static_cast<int>(n.columns);
  const Range range = range_of_others<Owner::Rows>(n, head, first, Tile::own, Tile::others);
  T* warp_rows = q_tile + warp * Tile::warp_rows * Tile::pitch;
  const RowLoader<Tile, Tile::others, T> k_rows(k + head.k(n), n.k_step, columns, depth, aligned);
  const RowLoader<Tile, Tile::others, T> v_rows(v + head.v(n), n.v_step, columns, value_depth, aligned);
  const KeptDraws draws(n, head);
  auto k_tile = [&](int stage) { return tiles + stage * 2 * Tile::others * Tile::pitch; };
  auto v_tile = [&](int stage) { return k_tile(stage) + Tile::others * Tile::pitch; };
  auto load = [&](int stage, int column) {
    k_rows.load(k_tile(stage), column);
    v_rows.load(v_tile(stage), column);
    commit_copies();
    if (is_mask_of_columns(n)) load_additions<Tile, T>(additions + stage * Tile::others, n, head, column);
  };
  RowLoader<Tile, Tile::own, T>(q + head.q(n), n.q_step, rows, depth, aligned).load(q_tile, first);
  if (range.first < range.end) load(0, range.first);
  commit_copies();

  Sums<Tile::m_tiles, Tile::d_tiles> out = {};
  RowSoftmax<Tile> softmax(n.scale);
  int stage = 0;
  for (int column = range.first; column < range.end; column += Tile::others, stage ^= 1) {
    const Place<Owner::Rows> place{warp_first + lane / 4, column + lane % 4 * 2};
    wait_for_copies<0>();
    __syncthreads();  // this tile has arrived, and the other stage is no longer read
    if (column + Tile::others < range.end) load(stage ^ 1, column + Tile::others);
    TileBits<Tile, Owner::Rows> bits;
    if (drops) bits.draw(draws, warp_first, column);
    Sums<Tile::m_tiles, Tile::n_tiles> scores;
    multiply_rows<Tile>(scores, k_tile(stage), [&](int m, int i) { return left_fragment<Tile>(warp_rows, m, 16 * i); });
    if (n.softcap > 0.0f) cap_sums<Tile>(scores, n);
    apply_masks<Tile, Owner::Rows, T>(scores, n, head, place, first, column, additions + stage * Tile::others);

    if (softmax.add(scores)) softmax.rescale_rows(out);
    if (drops) drop<Tile>(scores, bits);
    add_weighted_rows<Tile>(out, scores, v_tile(stage));
  }
  wait_for_copies<0>();
  __syncthreads();  // q has arrived even where no column is met

  softmax.finish(n, head, warp_first, call.sinks, call.lse);
  store_rows<Tile>(
      static_cast<T*>(call.y) + head.y(n), n.heads * n.value_depth, warp_first, rows, value_depth, aligned, q_tile, out,
      [&](int m, int half) { return softmax.sum[m][half] > 0.0f ? n.dropout.factor / softmax.sum[m][half] : 0.0f; });
}

template <typename Tile, typename T>
cudaError_t launch_forward(const AttentionShape& shape, bool aligned, const AttentionCall& call, cudaStream_t stream) {
  const int64_t row_tiles = (shape.rows + Tile::own - 1) / Tile::own;
  auto launch = [&](auto kernel) {
    return launch_mma(kernel, shape.batch * shape.heads * row_tiles, Tile::threads, ForwardTiles<Tile>::bytes, stream,
                      shape, aligned, call, static_cast<int>(row_tiles));
  };
  return shape.dropout.blocks > 0 ? launch(attention_mma_kernel<Tile, true, T>)
                                  : launch(attention_mma_kernel<Tile, false, T>);
}

}  // namespace

cudaError_t attention_mma(const AttentionShape& shape, const AttentionCall& call, cudaStream_t stream) {
  if (shape.batch * shape.heads * shape.rows == 0) return cudaSuccess;
  const int64_t depth = shape.depth > shape.value_depth ? shape.depth : shape.value_depth;
  const bool aligned = shape.depth % 8 == 0 && shape.value_depth % 8 == 0 && is_aligned(call.q, shape.q_step) &&
                       is_aligned(call.k, shape.k_step) && is_aligned(call.v, shape.v_step) && is_aligned(call.y, 0);
  if (takes_windows(shape, aligned) && !call.sinks.of_heads)
    return takes_window_boxes(shape) ? attention_window_boxes(shape, call, stream)
                                     : attention_windows(shape, call, stream);
  if (const cudaError_t error = launch_segment_tiles(shape, stream); error != cudaSuccess) return error;
  if (const cudaError_t error = launch_column_tiles(shape, stream); error != cudaSuccess) return error;
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if (aligned && (takes_warpgroups(depth) || takes_short_forward(shape)))
      return attention_warpgroup(shape, call, stream);
    auto launch = [&](auto tile) { return launch_forward<decltype(tile), T>(shape, aligned, call, stream); };
    if (depth <= 32) return launch(MmaTile<32, 1, 4, 64, 5>());
    if (depth <= 64) return launch(MmaTile<64, 1, 4, 64, 4>());
    if (depth <= 128) return launch(MmaTile<128, 2, 4, 32, 2>());
    return launch(MmaTile<256, 1, 4, 16, 2>());
  });
}

}  // namespace plimsoll::cuda
