#include "kernels/cuda/attention/attention_short_forward.cuh"
#include "kernels/cuda/attention/short_forward_sizes.h"
#include "kernels/cuda/common/card_attributes.h"

// Serves attention ("mma") on Hopper for heads of up to 64 elements: forward as in Dao (2023), in as many blocks as the
// card holds at a time. A block takes 64 rows after 64 rows, whose q, k, v and masks are on their way while the rows
// before are computed and written: at 512 columns a third of the time went into what begins and ends a block. While a
// tile's weights are multiplied with v, the next tile's scores become weights (Shah et al. 2024).

namespace plimsoll::cuda {
namespace {

// A warp's scores, by products that other warps have no part in. What stands where is as in WarpgroupTile::place.
template <typename Tile, typename T>
__device__ void multiply_as_warp(Sums<1, Tile::n_tiles>& sums, const T* q, const T* k) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const T* const left_row = q + (thread / 32 * Tile::warp_rows + lane % 16) * Tile::row_step;
  const T* const right_row = k + (lane % 8 + lane / 16 * 8) * Tile::row_step;
  const auto place = [&](int word) { return Tile::place_of_word(lane % 8, word) * 8; };
#pragma unroll
  for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
    for (float& sum : sums[0][t]) sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < Tile::depth / 16; ++i) {
    LeftFragment left;
    load_matrices(left.at, left_row + place(2 * i + lane / 16));
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; t += 2) {
      RightFragments right;
      load_matrices(right.at, right_row + 8 * t * Tile::row_step + place(2 * i + lane / 8 % 2));
      multiply_add<T>(sums[0][t], left, right, 0);
      multiply_add<T>(sums[0][t + 1], left, right, 1);
    }
  }
}

// The computing warpgroup's places.
template <typename Tile>
struct ComputingPlaces {
  StagePlace<Tile::stages> tile;
  StagePlace<Tile::word_stages> word;
};

// What the computing warpgroup does with a row block. It gives the rows before back by `release_last`, once its own
// first products are under way.
template <typename Tile, bool drops, typename T, typename Release>
__device__ void compute_row_block(const ShortForwardMaps& maps, const AttentionShape& n, const AttentionCall& call,
                                  const ShortRowBlock& block, const ShortForwardMemory<Tile, T>& memory, T* q,
                                  ComputingPlaces<Tile>& places, Release release_last) {
  using Masked = std::conditional_t<Tile::mask_bytes == 4, float, T>;
  auto& [at, word_at] = places;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_first = block.first + warp * Tile::warp_rows;
  const Range open = open_others<Owner::Rows>(n, block.first, Tile::own);
  const bool has_columns = is_mask_of_columns(n);

  Sums<1, Tile::d_tiles> out = {};
  Sums<1, Tile::n_tiles> scores;
  RowSoftmax<Tile> softmax(n.scale);
  Weights<Tile> weights;
  auto mask = [&](int column) {
    if constexpr (Tile::mask_bytes > 0)
      add_mask_tile<Tile, Masked>(scores, n.scale, memory.mask(at.stage));
    else if (has_columns && memory.all_mixed[at.stage]) [[unlikely]]
      add_additions<Tile>(scores, memory.additions(at.stage));
    if (column < open.first || column + Tile::others > open.end) [[unlikely]]
      close_columns<Tile>(scores, n, made_here(Place<Owner::Rows>{warp_first + lane / 4, column + lane % 4 * 2}));
  };
  auto round = [&] {
    if (drops) memory.wait_for_words(word_at);
    weights.template round<T>(scores);
    if (drops) {
      KeptRows<Tile> kept;
      kept.read(memory.words(word_at.stage) + 2 * warp * Tile::warp_rows);
      memory.release_words(word_at);
      weights.keep([&](int t, int half) { return kept.pair(t, half); });
      word_at.advance();
    }
  };

  // Warpgroups without rows pass the tiles on.
  const int group_first = block.first + __shfl_sync(whole_warp, warp / 4, 0) * warpgroup_rows;
  const int end = Tile::groups == 1 || group_first < n.rows ? block.columns.end : block.columns.first;
  int column = block.columns.first;
  if (column < end) {
    const uint64_t own = own_matrix<Tile>(q);
    memory.wait_for_k(at);
    start_scores<Tile>(scores, own, memory.k(at.stage));
    release_last();
    wait_for_products<0>();
    settle(scores[0]);
    mask(column);
    memory.release_k(at);
    softmax.add(scores);
    memory.wait_for_v(at);
    round();
    for (column += Tile::others; column < end; column += Tile::others) {
      const StagePlace<Tile::stages> last = at;
      at.advance();
      memory.wait_for_k(at);
      start_scores<Tile>(scores, own, memory.k(at.stage));
      start_weighted_rows<Tile>(out, weights, memory.v(last.stage));
      wait_for_products<1>();
      settle(scores[0]);
      mask(column);
      const bool fits = softmax.add_as_before(scores);
      settle(scores[0]);
      // The compiler moves no exponential behind this, so that they are beside the products with v.
      memory.wait_for_v(at);
      wait_for_products<0>();
      settle(out[0]);
      memory.release_v(last);
      if (!fits) [[unlikely]] {
        multiply_as_warp<Tile>(scores, q, memory.k(at.stage));
        mask(column);
        if (softmax.add(scores)) softmax.rescale_rows(out);
      }
      memory.release_k(at);
      round();
    }
    start_weighted_rows<Tile>(out, weights, memory.v(at.stage));
    wait_for_products<0>();
    settle(out[0]);
    memory.release_v(at);
    at.advance();
  } else {
    release_last();
  }
  for (; Tile::groups > 1 && column < block.columns.end; column += Tile::others, at.advance()) {
    memory.wait_for_k(at);
    memory.release_k(at);
    memory.wait_for_v(at);
    memory.release_v(at);
  }

  softmax.finish(n, block.head, warp_first, call.sinks, call.lse);
  store_rows_of_y<Tile>(maps, block.head, warp_first, static_cast<int>(n.value_depth), q, out, [&](int half) {
    const float sum = softmax.sum[0][half];
    return sum > 0.0f ? __fdividef(n.dropout.factor, sum) : 0.0f;
  });
}

template <typename Tile, bool drops, typename T>
__device__ void compute_row_blocks(const ShortForwardMaps& maps, const AttentionShape& n, const AttentionCall& call,
                                   const RowBlocks& blocks, const ShortForwardMemory<Tile, T>& memory) {
  ComputingPlaces<Tile> places;
  StagePlace<Tile::row_stages> row_at, last;
  bool has_last = false;
  auto release_last = [&] {
    if (!has_last) return;
    if (threadIdx.x % 32 == 0) wait_for_stored_boxes();
    memory.release_q(last);
    has_last = false;
  };
#pragma unroll 1
  for (;; row_at.advance()) {
    memory.wait_for_q(row_at);
    const RowBlockNote note = memory.notes[row_at.stage];
    if (note.number == RowBlockNote::none) break;
    compute_row_block<Tile, drops>(maps, n, call, ShortRowBlock::of<Tile>(n, blocks, note.number, note.columns), memory,
                                   memory.q(row_at.stage), places, release_last);
    last = row_at, has_last = true;
    if (Tile::row_stages == 1) release_last();  // the next rows of q come to the same stage
  }
  release_last();
}

template <typename Tile, bool drops, typename T>
__device__ void forward(const ShortForwardMaps& maps, const AttentionShape& n, const AttentionCall& call,
                        const RowBlocks& blocks) {
  const ShortForwardMemory<Tile, T> memory(tile_memory());
  if (threadIdx.x == 0) memory.set_up_barriers(drops);
  __syncthreads();
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < Tile::warps) {
    take_registers<Tile::computing_registers>();
    compute_row_blocks<Tile, drops>(maps, n, call, blocks, memory);
  } else {
    give_registers<Tile::loading_registers>();
    load_row_blocks<Tile, drops>(maps, n, blocks, memory);
  }
}

template <typename Tile, bool drops, typename T>
__global__ void __launch_bounds__(Tile::block_threads, Tile::blocks)
    attention_short_forward_kernel(const __grid_constant__ ShortForwardMaps maps,
                                   const __grid_constant__ AttentionShape n, const __grid_constant__ AttentionCall call,
                                   const __grid_constant__ RowBlocks blocks) {
  if constexpr (has_warpgroups)
    forward<Tile, drops, T>(maps, n, call, blocks);
  else
    __trap();
}

template <typename Tile, bool drops, typename T>
cudaError_t launch(const AttentionShape& n, const AttentionCall& call, cudaStream_t stream) {
  const int64_t tiles = (n.rows + Tile::own - 1) / Tile::own, all = n.batch * n.heads * tiles;
  int multiprocessors = 0;
  if (cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess) return error;
  const int64_t at_a_time = std::min<int64_t>(all, int64_t{Tile::blocks} * multiprocessors);
  ShortForwardMaps maps;
  if (cudaError_t error = maps.fill(n, call, Tile::own, Tile::others, Tile::warp_rows, Tile::box); error != cudaSuccess)
    return error;
  if constexpr (Tile::mask_bytes > 0)
    if (cudaError_t error = maps.fill_mask(n, Tile::mask_bytes, Tile::own); error != cudaSuccess) return error;
  if (all > at_a_time)
    if (cudaError_t error = cudaMemsetAsync(call.next_rows, 0, sizeof(unsigned), stream); error != cudaSuccess)
      return error;
  const RowBlocks blocks{static_cast<unsigned>(tiles), static_cast<unsigned>(all), call.next_rows};
  return launch_mma(attention_short_forward_kernel<Tile, drops, T>, at_a_time, Tile::block_threads,
                    ShortForwardMemory<Tile, T>::bytes, stream, maps, n, call, blocks);
}

// Four tiles of rows meet the same columns where there is neither a diagonal nor a window, and the loading warps of one
// block are too few to draw their bits.
template <int depth, bool drops, typename T>
cudaError_t launch_for_mask(const AttentionShape& n, const AttentionCall& call, cudaStream_t stream) {
  constexpr int f32_row_stages = depth == 32 ? 2 : 1;
  if (!n.mask || n.mask_strides[2] == 0) {
    if constexpr (!drops) {
      int multiprocessors = 0;
      if (cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess) return error;
      if (!n.causal && n.window == 0 && shares_columns(n.batch * n.heads, n.rows, multiprocessors))
        return launch<ShortForwardTile<depth, 4, 5, 2, 0>, drops, T>(n, call, stream);
    }
    return launch<ShortForwardTile<depth, 1, 3, 2, 0>, drops, T>(n, call, stream);
  }
  return n.mask_type == Scalar::F32
             ? launch<ShortForwardTile<depth, 1, 2, f32_row_stages, 4>, drops, T>(n, call, stream)
             : launch<ShortForwardTile<depth, 1, 2, 2, 2>, drops, T>(n, call, stream);
}

template <bool drops, typename T>
cudaError_t launch_for_depth(const AttentionShape& n, const AttentionCall& call, cudaStream_t stream) {
  return std::max(n.depth, n.value_depth) <= 32 ? launch_for_mask<32, drops, T>(n, call, stream)
                                                : launch_for_mask<64, drops, T>(n, call, stream);
}

// Can the copy engine bring the mask as tiles?
bool has_mask_tiles(const AttentionShape& n) {
  const int64_t(&steps)[4] = n.mask_strides;
  const int64_t of_head = n.rows * steps[2], of_sample = steps[1] != 0 ? n.heads * of_head : of_head;
  const int64_t row_bytes = steps[2] * (n.mask_type == Scalar::F32 ? 4 : 2);
  return n.mask_type != Scalar::Bool && steps[2] >= n.columns && steps[3] == 1 &&
         (steps[1] == 0 || steps[1] == of_head) && (steps[0] == 0 || steps[0] == of_sample) && row_bytes % 16 == 0 &&
         reinterpret_cast<uintptr_t>(n.mask) % 16 == 0;
}

}  // namespace

bool takes_short_forward(const AttentionShape& n) {
  return is_hopper() && n.depth <= 64 && n.value_depth <= 64 && n.softcap == 0.0f && !n.slopes && !n.segments &&
         (!n.mask || n.mask_strides[2] == 0 || has_mask_tiles(n));
}

cudaError_t attention_short_forward(const AttentionShape& shape, const AttentionCall& call, cudaStream_t stream) {
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return shape.dropout.blocks > 0 ? launch_for_depth<true, T>(shape, call, stream)
                                    : launch_for_depth<false, T>(shape, call, stream);
  });
}

}  // namespace plimsoll::cuda
