#include "kernels/cuda/attention/attention_softmax.cuh"
#include "kernels/cuda/attention/attention_warpgroup.cuh"

// Serves attention ("mma") on Hopper: forward as in Dao (2023). While a tile's weights are multiplied with v, the next
// tile's scores become weights (Shah et al. 2024); k is read one tile ahead of v.

namespace plimsoll::cuda {
namespace {

template <typename Tile, typename T>
struct ForwardMemory {
  T *q, *k_stages, *v_stages;
  float* all_additions;  // [stages, others] what the mask adds to columns

  static constexpr int bytes =
      (Tile::own_elements + 2 * Tile::stages * Tile::other_elements) * static_cast<int>(sizeof(T)) +
      Tile::stages * Tile::others * static_cast<int>(sizeof(float));

  __device__ explicit ForwardMemory(void* shared)
      : q(static_cast<T*>(shared)),
        k_stages(q + Tile::own_elements),
        v_stages(k_stages + Tile::stages * Tile::other_elements),
        all_additions(reinterpret_cast<float*>(v_stages + Tile::stages * Tile::other_elements)) {}

  __device__ T* k(int stage) const { return k_stages + stage * Tile::other_elements; }
  __device__ T* v(int stage) const { return v_stages + stage * Tile::other_elements; }
  __device__ float* additions(int stage) const { return all_additions + stage * Tile::others; }
};

template <typename Tile, bool drops, typename T>
__device__ void forward(const AttentionShape& n, bool aligned, const AttentionCall& call, int row_tiles) {
  constexpr int ahead = Tile::stages - 1;
  const ForwardMemory<Tile, T> tiles(tile_memory());
  // The longest rows of causal attention come first.
  const int64_t number = blockIdx.x / row_tiles;
  const int first = (row_tiles - 1 - static_cast<int>(blockIdx.x % row_tiles)) * Tile::own;
  const Head head{number / n.heads, number % n.heads};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_first = first + warp * Tile::warp_rows, rows = static_cast<int>(n.rows);
  const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
  const int columns = static_cast<int>(n.columns);
  const Range range = range_of_others<Owner::Rows>(n, head, first, Tile::own, Tile::others);
  const RowLoader<Tile, Tile::others, T> k_rows(static_cast<const T*>(call.k) + head.k(n), n.k_step, columns, depth,
                                                aligned);
  const RowLoader<Tile, Tile::others, T> v_rows(static_cast<const T*>(call.v) + head.v(n), n.v_step, columns,
                                                value_depth, aligned);
  const Range open = open_others<Owner::Rows>(n, first, Tile::own);
  const bool adds = is_mask_of_columns(n), has_row_mask = n.mask && !adds;
  const ColumnTile* const mask_tiles = tiles_of_mask(n, head);
  auto load_k = [&](int stage, int column) {
    if (column < range.end) k_rows.load(tiles.k(stage), column);
  };
  auto load_v = [&](int stage, int column) {
    if (column < range.end) v_rows.load(tiles.v(stage), column);
  };

  Sums<1, Tile::d_tiles> out = {};
  Sums<1, Tile::n_tiles> scores;
  RowSoftmax<Tile> softmax(n.scale);
  const KeptDraws draws(n, head);
  KeptRows<Tile> kept;
  // Scores become weights; true where `out` must be rescaled.
  auto weigh = [&](int stage, int column, ColumnTile noted) {
    const Place<Owner::Rows> place{warp_first + lane / 4, column + lane % 4 * 2};
    if (n.softcap > 0.0f) cap_sums<Tile>(scores, n);
    if (adds && noted != ColumnTile::Open) add_additions<Tile>(scores, tiles.additions(stage));
    if (n.slopes) subtract_distances<Tile, Owner::Rows>(scores, slope_of(n, head), place);
    if (n.segments) close_other_segments<Tile, Owner::Rows>(scores, n, head, place, first, column);
    if (has_row_mask) add_row_mask<Tile, Owner::Rows, T>(scores, n, head, place, first, column);
    if (column < open.first || column + Tile::others > open.end) close_outside<Tile, Owner::Rows>(scores, n, place);
    return softmax.add(scores);
  };
  Weights<Tile> weights;
  auto round = [&] {
    weights.template round<T>(scores);
    if (drops) weights.keep([&](int t, int half) { return kept.pair(t, half); });
  };

  RowLoader<Tile, Tile::own, T>(static_cast<const T*>(call.q) + head.q(n), n.q_step, rows, depth, aligned)
      .load(tiles.q, first);
  load_k(0, range.first);
  commit_copies();
  for (int i = 0; i < ahead; ++i) {
    const int column = range.first + i * Tile::others;
    load_v(i, column);
    load_k(i + 1, column + Tile::others);
    commit_copies();
  }
  if (adds)
    for (int i = 0; i < 2; ++i)
      store_addition<Tile>(tiles.additions(i), addition_of<Tile, T>(n, head, range.first + i * Tile::others));
  meet_with_copies<ahead>();
  if (range.first < range.end) {
    const uint64_t own = own_matrix(tiles.q);
    start_scores<Tile>(scores, own, tiles.k(0));
    if (drops) kept.draw(draws, warp_first, range.first);
    wait_for_products<0>();
    settle(scores[0]);
    weigh(0, range.first, noted_tile(n, mask_tiles, range.first));
    round();
    // `stage` holds v of this tile; k of the next stands one further on, and the last to be loaded `ahead` further on.
    int stage = 0, next = range.first + Tile::others;
    for (; next < range.end; next += Tile::others) {
      const int next_stage = Tile::next(stage), free_stage = stage == 0 ? Tile::stages - 1 : stage - 1;
      meet_with_copies<ahead - 1>();  // k of this tile and v of the last are done with, and their places free
      load_v(free_stage, next + (ahead - 1) * Tile::others);
      load_k(stage, next + ahead * Tile::others);
      commit_copies();
      const float added = adds ? addition_of<Tile, T>(n, head, next + Tile::others) : 0.0f;
      const ColumnTile noted = noted_tile(n, mask_tiles, next);
      start_scores<Tile>(scores, own, tiles.k(next_stage));
      start_weighted_rows<Tile>(out, weights, tiles.v(stage));
      if (drops) kept.draw(draws, warp_first, next);
      wait_for_products<1>();
      settle(scores[0]);
      const bool grows = weigh(next_stage, next, noted);
      if (adds) store_addition<Tile>(tiles.additions(Tile::next(next_stage)), added);
      wait_for_products<0>();
      settle(out[0]);
      if (grows) softmax.rescale_rows(out);
      round();
      stage = next_stage;
    }
    meet_with_copies<0>();
    start_weighted_rows<Tile>(out, weights, tiles.v(stage));
    wait_for_products<0>();
    settle(out[0]);
  }
  wait_for_copies<0>();

  softmax.finish(n, head, warp_first, call.sinks, call.lse);
  store_rows<Tile>(static_cast<T*>(call.y) + head.y(n), n.heads * n.value_depth, warp_first, rows, value_depth, aligned,
                   tiles.q, out, [&](int m, int half) {
                     return softmax.sum[m][half] > 0.0f ? n.dropout.factor / softmax.sum[m][half] : 0.0f;
                   });
}

template <typename Tile, bool drops, typename T>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    attention_warpgroup_kernel(AttentionShape n, bool aligned, AttentionCall call, int row_tiles) {
  if constexpr (has_warpgroups)
    forward<Tile, drops, T>(n, aligned, call, row_tiles);
  else
    __trap();
}

template <typename Tile, typename T>
cudaError_t launch(const AttentionShape& shape, bool aligned, const AttentionCall& call, cudaStream_t stream) {
  const int64_t row_tiles = (shape.rows + Tile::own - 1) / Tile::own;
  auto launch_kernel = [&](auto kernel) {
    return launch_mma(kernel, shape.batch * shape.heads * row_tiles, Tile::threads, ForwardMemory<Tile, T>::bytes,
                      stream, shape, aligned, call, static_cast<int>(row_tiles));
  };
  return shape.dropout.blocks > 0 ? launch_kernel(attention_warpgroup_kernel<Tile, true, T>)
                                  : launch_kernel(attention_warpgroup_kernel<Tile, false, T>);
}

}  // namespace

cudaError_t attention_warpgroup(const AttentionShape& shape, bool aligned, const AttentionCall& call,
                                cudaStream_t stream) {
  const int64_t depth = shape.depth > shape.value_depth ? shape.depth : shape.value_depth;
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if (depth <= 64) return launch<WarpgroupTile<64, 1, 3, 3>, T>(shape, aligned, call, stream);
    if (depth <= 128) return launch<WarpgroupTile<128, 1, 3, 2>, T>(shape, aligned, call, stream);
    return launch<WarpgroupTile<256, 2, 2, 1>, T>(shape, aligned, call, stream);
  });
}

}  // namespace plimsoll::cuda
