#include "kernels/cuda/attention/attention_forward.cuh"

// Serves attention ("mma") on Hopper: forward as in Dao (2023). While a tile's weights are multiplied with v, the next
// tile's scores become weights (Shah et al. 2024). Calls without caps, slopes, segments and masks with rows have a
// kernel of their own: it is short enough for the instruction cache.

namespace plimsoll::cuda {
namespace {

// What a warpgroup that computes does: its 64 rows.
template <typename Tile, bool drops, bool forms, typename T>
__device__ void compute(const AttentionMaps& maps, const AttentionShape& n, const AttentionCall& call,
                        const RowBlock& block, const ForwardMemory<Tile, T>& memory) {
  using Rows = typename Tile::OfGroup;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group_first = block.first + __shfl_sync(whole_warp, warp / 4, 0) * warpgroup_rows;
  const int warp_first = block.first + warp * Tile::warp_rows;
  const Head& head = block.head;
  const Range range = block.columns_of_group<Tile>(n, group_first);
  const Range open = open_others<Owner::Rows>(n, group_first, warpgroup_rows);
  const ColumnTile* const mask_tiles = tiles_of_mask(n, head);

  Sums<1, Tile::d_tiles> out = {};
  Sums<1, Tile::n_tiles> scores;
  RowSoftmax<Tile> softmax(n.scale);
  Weights<Tile> weights;
  // Scores become weights; true where `out` must be rescaled.
  auto weigh = [&](int column) {
    const Place<Owner::Rows> place{warp_first + lane / 4, column + lane % 4 * 2};
    if (forms) {
      if (n.softcap > 0.0f) cap_sums<Rows>(scores, n);
      if (n.slopes) subtract_distances<Rows, Owner::Rows>(scores, slope_of(n, head), place);
      if (n.segments) close_other_segments<Rows, Owner::Rows>(scores, n, head, place, group_first, column);
    }
    if (n.mask && noted_tile(n, mask_tiles, column) != ColumnTile::Open) [[unlikely]] {
      if (!forms || is_mask_of_columns(n))
        add_mask_of_columns<Rows, T>(scores, n, head, place);
      else
        add_row_mask<Rows, Owner::Rows, T>(scores, n, head, place, group_first, column);
    }
    if (column < open.first || column + Tile::others > open.end) [[unlikely]]
      close_columns<Rows>(scores, n, made_here(place));
    return softmax.add(scores);
  };
  auto round = [&](int stage) {
    weights.template round<T>(scores);
    if (drops) {
      KeptRows<Tile> kept;
      kept.read(memory.words(stage) + 2 * warp * Tile::warp_rows);
      weights.keep([&](int t, int half) { return kept.pair(t, half); });
    }
  };

  StagePlace<Tile::stages> at;
  int column = block.columns.first;
  // Tiles that only other rows of the block meet.
  auto pass_to = [&](int end) {
    for (; column < end; column += Tile::others, at.advance()) {
      memory.wait_for_k(at);
      memory.wait_for_v(at);
      if (drops) memory.wait_for_words(at);
      memory.release_k(at);
      memory.release_v(at);
    }
  };
  pass_to(min(range.first, block.columns.end));
  wait_at(memory.q_barrier(), 0);
  if (range.first < range.end) {
    const uint64_t own = own_matrix<Tile>(memory.q);
    memory.wait_for_k(at);
    start_scores<Tile>(scores, own, memory.k(at.stage));
    wait_for_products<0>();
    settle(scores[0]);
    memory.release_k(at);
    weigh(column);
    if (drops) memory.wait_for_words(at);
    round(at.stage);
    for (column += Tile::others; column < range.end; column += Tile::others) {
      const StagePlace<Tile::stages> last = at;
      at.advance();
      memory.wait_for_k(at);
      start_scores<Tile>(scores, own, memory.k(at.stage));
      memory.wait_for_v(last);
      start_weighted_rows<Tile>(out, weights, memory.v(last.stage));
      wait_for_products<1>();
      settle(scores[0]);
      memory.release_k(at);
      const bool grows = weigh(column);
      wait_for_products<0>();
      settle(out[0]);
      memory.release_v(last);
      if (grows) [[unlikely]]
        softmax.rescale_rows(out);
      if (drops) memory.wait_for_words(at);
      round(at.stage);
    }
    memory.wait_for_v(at);
    start_weighted_rows<Tile>(out, weights, memory.v(at.stage));
    wait_for_products<0>();
    settle(out[0]);
    memory.release_v(at);
    at.advance();
  }
  pass_to(block.columns.end);

  softmax.finish(n, head, warp_first, call.sinks, call.lse);
  store_rows_of_y<Tile>(maps, head, warp_first, static_cast<int>(n.value_depth), memory.q, out, [&](int half) {
    const float sum = softmax.sum[0][half];
    return sum > 0.0f ? __fdividef(n.dropout.factor, sum) : 0.0f;
  });
  if (lane == 0) wait_for_stored_boxes();
}

template <typename Tile, bool drops, bool forms, typename T>
__device__ void forward(const AttentionMaps& maps, const AttentionShape& n, const AttentionCall& call,
                        unsigned row_tiles) {
  const ForwardMemory<Tile, T> memory(tile_memory());
  if (threadIdx.x == 0) memory.set_up_barriers();
  const RowBlock block = RowBlock::of<Tile>(n, row_tiles);
  __syncthreads();
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < Tile::warps) {
    take_registers<Tile::computing_registers>();
    compute<Tile, drops, forms>(maps, n, call, block, memory);
  } else {
    give_registers<Tile::loading_registers>();
    load_tiles<Tile, drops>(maps, n, block, memory);
  }
}

template <typename Tile, bool drops, bool forms, typename T>
__global__ void __launch_bounds__(Tile::block_threads, Tile::blocks)
    attention_warpgroup_kernel(const __grid_constant__ AttentionMaps maps, const __grid_constant__ AttentionShape n,
                               const __grid_constant__ AttentionCall call, unsigned row_tiles) {
  if constexpr (has_warpgroups)
    forward<Tile, drops, forms, T>(maps, n, call, row_tiles);
  else
    __trap();
}

// Do scores need what only some calls have?
bool has_forms(const AttentionShape& n) {
  return n.softcap > 0.0f || n.slopes || n.segments || (n.mask && n.mask_strides[2] != 0);
}

template <typename Tile, bool drops, typename T>
cudaError_t launch(const AttentionShape& n, const AttentionCall& call, cudaStream_t stream) {
  const int64_t row_tiles = (n.rows + Tile::own - 1) / Tile::own;
  AttentionMaps maps;
  if (cudaError_t error = maps.fill(n, call, Tile::own, Tile::others, Tile::warp_rows, Tile::box); error != cudaSuccess)
    return error;
  auto launch_kernel = [&](auto kernel) {
    return launch_mma(kernel, n.batch * n.heads * row_tiles, Tile::block_threads, ForwardMemory<Tile, T>::bytes, stream,
                      maps, n, call, static_cast<unsigned>(row_tiles));
  };
  // Without forms, heads of up to 64 elements have attention_short_forward.cu.
  if constexpr (Tile::depth > 64)
    if (!has_forms(n)) return launch_kernel(attention_warpgroup_kernel<Tile, drops, false, T>);
  if constexpr (Tile::box == narrow_box)
    return cudaErrorInvalidValue;
  else
    return launch_kernel(attention_warpgroup_kernel<Tile, drops, true, T>);
}

// Short heads have registers for three blocks, of which one computes while another begins. With more warpgroups, a
// block reads k and v fewer times from the cache; drawing bits, one warpgroup cannot keep up with three.
template <bool drops, typename T>
cudaError_t launch_for_depth(const AttentionShape& n, const AttentionCall& call, cudaStream_t stream) {
  using Middle = std::conditional_t<drops, ForwardTile<128, 1, 2, 2, 208, 48>, ForwardTile<128, 3, 3, 1, 160, 32>>;
  const int64_t depth = n.depth > n.value_depth ? n.depth : n.value_depth;
  if (depth <= 64) return launch<ForwardTile<64, 1, 4, 3, 128, 32>, drops, T>(n, call, stream);
  if constexpr (!drops)
    if (depth <= 80 && !has_forms(n)) return launch<ForwardTile<80, 3, 3, 1, 160, 32>, drops, T>(n, call, stream);
  if (depth <= 128) return launch<Middle, drops, T>(n, call, stream);
  return launch<ForwardTile<256, 2, 2, 1, 232, 40>, drops, T>(n, call, stream);
}

}  // namespace

cudaError_t attention_warpgroup(const AttentionShape& shape, const AttentionCall& call, cudaStream_t stream) {
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if (takes_short_forward(shape)) return attention_short_forward(shape, call, stream);
    return shape.dropout.blocks > 0 ? launch_for_depth<true, T>(shape, call, stream)
                                    : launch_for_depth<false, T>(shape, call, stream);
  });
}

}  // namespace plimsoll::cuda
