#include "kernels/cuda/attention/attention_one_pass_short.cuh"
#include "kernels/cuda/common/card_attributes.h"

// Serves attention_grad ("one_pass") on Hopper for heads of up to 96 elements, or 64 with a cap on the scores. Each
// multiprocessor has one block, which takes 128 columns of a key head after the other, so that the next ones are loaded
// while these are computed. Its two computing warpgroups have dk and dv of 64 columns each in registers and walk over
// the rows in tiles of 64; they share dS, so that each makes half of the elements of dq. Scores and dP of a tile are
// started before dq and dk of the tile before it, so that the matrix units have work while the threads have theirs. The
// sums of heads of more than 64 elements leave fewer registers: there dk is started with dq, which is stored before
// weights are made.
//
// Blocks take columns by number, and wait only for turns of lower numbers, which other blocks have taken before.

namespace plimsoll::cuda {
namespace {

// Closes the rows that a column is not seen from, as close_outside does: it is seen from `first` to before `end`.
template <typename Tile>
__device__ void close_rows(Sums<1, Tile::n_tiles>& sums, const AttentionShape& n, const Place<Owner::Columns>& place) {
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns);
  const int window = n.window > 0 ? static_cast<int>(n.window) : rows + columns + Tile::own + Tile::others;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = place.own_row(0, 2 * half);
    const int end = (column < columns ? min(rows, column + window) : 0) - place.other;
    const int first = (n.causal ? column : column - window + 1) - place.other;
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (8 * t + e < first || 8 * t + e >= end) sums[0][t][2 * half + e] = -INFINITY;
  }
}

// The next stage and the next buffers.
template <typename Tile>
struct ShortPlaces {
  StagePlace<Tile::stages> stage;
  StagePlace<Tile::adding_warps> share;
  StagePlace<1> mask;
  int ds_tile = 0;
};

// Writes a warp's sums, times a factor, as rows of a head from `first` on, by way of its rows of an owned tile. What
// this takes beside the sums is computed here: while products run, there are no registers for it.
template <typename Tile, typename T>
__device__ void store_own_rows(T* head, int64_t step, int first, int rows, int depth, T* own_tile,
                               const Sums<1, Tile::d_tiles>& sums, float by) {
  constexpr int of_box = Tile::box / 16;
  const int thread = made_here(static_cast<int>(threadIdx.x)), lane = thread % 32;
  T* const own = own_tile + thread / 32 * Tile::warp_rows * Tile::box;
  const int place = Tile::template place<Tile::own>(lane % 16, lane / 16 * 8);
  __syncwarp();
#pragma unroll
  for (int k = 0; k < Tile::depth / 16; ++k) {
    const float(&left)[4] = sums[0][2 * k], (&right)[4] = sums[0][2 * k + 1];
    const uint32_t at[4] = {packed_pair<T>(left[0] * by, left[1] * by), packed_pair<T>(left[2] * by, left[3] * by),
                            packed_pair<T>(right[0] * by, right[1] * by), packed_pair<T>(right[2] * by, right[3] * by)};
    store_matrices(own + k / of_box * Tile::own * Tile::box + (place ^ k % of_box * 16), at);
  }
  __syncwarp();
  constexpr int length = 8, words = Tile::depth / length;
#pragma unroll
  for (int pass = 0; pass < Tile::warp_rows * words; pass += 32) {
    const int i = pass + lane, row = i / words, d = i % words * length;
    if (first + row < rows && d < depth)
      *reinterpret_cast<uint4*>(head + (first + row) * step + d) =
          *reinterpret_cast<const uint4*>(own + Tile::template place<Tile::own>(row, d));
  }
}

// Starts to store a tile of dS: a thread's work.
template <typename Tile, typename T>
__device__ void store_scores(const CUtensorMap& map, const T* tile, int first_column, int head, int row, int batch) {
#pragma unroll
  for (int i = 0; i < Tile::own; i += box_depth)
    store_box(tile + i * Tile::others, map, first_column + i, head, row, batch);
}

// What the computing warpgroups do with the columns of a slot.
template <typename Tile, bool caps, typename T>
__device__ void compute(const OwnedColumns& own, int slot, ShortPlaces<Tile>& places, const AttentionGradMaps& maps,
                        const ShortMemory<Tile, T>& memory, const AttentionShape& n, const AttentionGradCall& grads) {
  constexpr bool drops = Tile::drops, holds_v = Tile::holds_v && !caps;
  auto& [at, share, mask, ds_tile] = places;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = __shfl_sync(whole_warp, warp / 4, 0);
  const int warp_first = own.first + warp * Tile::warp_rows;
  const Range open = open_others<Owner::Columns>(n, own.first + group * warpgroup_rows, warpgroup_rows);
  const bool adds = own.adds[group];
  const float to_log2 = n.scale * log2_e;
  OwnAdditions<Tile> of_own{};
  if (adds) [[unlikely]]
    of_own.template load_with_slopes<T>(n, Head{own.batch, own.first_head},
                                        Place<Owner::Columns>{warp_first + lane / 4, 0});
  Sums<1, Tile::d_tiles> dk = {}, dv = {};
  Weights<Tile> ds;
  T *const k_tile = memory.own_k(slot), *const v_tile = memory.own_v(slot);
  const uint64_t own_k = own_matrix<Tile>(k_tile), own_v = own_matrix<Tile>(v_tile);
  const uint64_t k_of_share =
      Tile::template matrix<Tile::own>(k_tile) + matrix_step<Tile::own, Tile::box>(0, group * Tile::share_step * 8);
  HeldRows<Tile> held_v;
  if constexpr (holds_v) held_v.load(v_tile);
  const int steps = own.walk().steps();
  int head = 0, row = (own.end_tile - 1) * one_pass_rows, last_stage = 0, last_head = 0, last_row = 0;
  settle(dk[0]);
  settle(dv[0]);

  auto begin_dq = [&](Sums<1, Tile::share_tiles>& dq) {
    const T* const ds_of_last = memory.ds(ds_tile ^ 1);
    if constexpr (!Tile::has_row_mask) {
      meet<Tile::threads>(Tile::computing);  // dS of all columns is there
      start_dq<Tile>(dq, ds_of_last, k_of_share);
    } else {
      if (threadIdx.x == 0) wait_for_stored_boxes();  // the other tile may be written again
      meet<Tile::threads>(Tile::computing);
      if (threadIdx.x == 0 && grads.scores.at)
        store_scores<Tile>(maps.scores, ds_of_last, own.first, own.first_head + last_head, last_row, own.batch);
      start_dq_of_rows<Tile>(dq, ds_of_last, k_of_share);
    }
  };
  auto store_dq = [&](Sums<1, Tile::share_tiles>& dq) {
    wait_at(memory.share_is_empty(share.stage), share.parity ^ 1);
    settle(dq[0]);
    store_share<Tile>(memory.share(share.stage), dq);
  };
  // Once what was stored is shown to the copy of the share.
  auto hand_over_share = [&] {
    arrive_as_warp_at(memory.share_is_full(share.stage));
    share.advance();
  };
  // The first tile has none before it. It has code of its own, since the compiler waits after every product where some
  // of those that are under way stand in a branch.
  auto compute_tile = [&](auto is_first) {
    constexpr bool first = decltype(is_first)::value;
    Sums<1, Tile::share_tiles> dq;
    Sums<1, Tile::n_tiles> scores, dp;
    Weights<Tile> weights;
    const Place<Owner::Columns> place{warp_first + lane / 4, row + lane % 4 * 2};
    const int stage = __shfl_sync(whole_warp, at.stage, 0);  // the same for all threads, as the compiler learns
    wait_at(memory.stage_is_full(stage), at.parity);
    start_scores<Tile>(scores, own_k, memory.q(stage));
    if constexpr (holds_v)
      held_v.start_scores(dp, memory.dy(stage));
    else
      start_scores<Tile>(dp, own_v, memory.dy(stage));
    if constexpr (!first) {
      begin_dq(dq);
      if constexpr (Tile::is_narrow) start_weighted_rows<Tile>(dk, ds, memory.q(last_stage));
    }
    wait_for_products<first ? 1 : Tile::is_narrow ? 3 : 2>();
    settle(scores[0]);
    if (row < open.first || row + Tile::others > open.end) [[unlikely]]
      close_rows<Tile>(scores, n, made_here(place));
    const float* const constants = memory.constants(stage) + lane % 4 * 2;
    const KeptColumns bits = KeptColumns::of<Tile>(memory.words(stage), own.first, place);
    auto of_row = [&](int kind, int t) {
      return *reinterpret_cast<const float2*>(constants + kind * Tile::others + 8 * t);
    };
    auto lse_of_row = [&](int t, int e) {
      const float2 lse = of_row(0, t);
      return e % 2 == 0 ? lse.x : lse.y;
    };
    if constexpr (caps) {
      capped_probabilities<Tile, T>(scores, weights, Cap(n), to_log2, lse_of_row,
                                    [&](int, int, int e) { return of_own.at[0][e / 2]; });
    } else {
      if constexpr (Tile::has_row_mask) {
        wait_at(memory.mask_is_full(), mask.parity);
        const MaskOfTile<std::conditional_t<Tile::mask_bytes == 4, float, T>> added(memory.mask());
        probabilities<Tile>(scores, to_log2, [&](int t, int e) { return lse_of_row(t, e) - added(t, e) * log2_e; });
        arrive_as_warp_at(memory.mask_is_empty());
        mask.advance();
      } else {
        if (adds) [[unlikely]]
          of_own.add_to(scores);
        probabilities<Tile>(scores, to_log2, lse_of_row);
      }
      if constexpr (Tile::is_narrow && !first) {
        wait_for_products<1>();
        store_dq(dq);
      }
      weights.template round<T>(scores);
    }
    if (drops) weights.keep([&](int t, int half) { return KeptColumns::pair(bits.of_rows(t), half); });
    if constexpr (!first && !Tile::is_narrow) start_weighted_rows<Tile>(dk, ds, memory.q(last_stage));
    start_weighted_rows<Tile>(dv, weights, memory.dy(stage));
    wait_for_products<first ? 1 : 2>();  // dP, and dq
    if constexpr (!first && !Tile::is_narrow) store_dq(dq);
    settle(dp[0]);
    differentiate_columns<Tile, drops>(dp, scores, bits, [&](int t) { return of_row(1, t); });
    if constexpr (!first) {
      wait_for_products<1>();  // dk, which reads dS from registers
      arrive_as_warp_at(memory.stage_is_empty(last_stage));
    }
    if constexpr (Tile::has_row_mask && drops) {
#pragma unroll
      for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
        for (float& element : dp[0][t]) element *= n.dropout.factor;
    }
    ds.template round<T>(dp);
    if constexpr (Tile::has_row_mask)
      store_rows_of_ds<Tile>(memory.ds(ds_tile), ds);
    else
      store_ds<Tile>(memory.ds(ds_tile), ds);
    ds_tile ^= 1;
    show_to_matrix_units();
    if constexpr (!first) hand_over_share();
    wait_for_products<0>();
    last_stage = stage;
    at.advance();
    if constexpr (Tile::has_row_mask) last_head = head, last_row = row;
    if (++head == own.shared_by) head = 0, row -= one_pass_rows;
  };
  if (steps > 0) {
    compute_tile(std::true_type());
#pragma unroll 1
    for (int step = 1; step < steps; ++step) compute_tile(std::false_type());
    Sums<1, Tile::share_tiles> dq;
    begin_dq(dq);
    start_weighted_rows<Tile>(dk, ds, memory.q(last_stage));
    wait_for_products<1>();
    store_dq(dq);
    show_to_matrix_units();
    hand_over_share();
    wait_for_products<0>();
    arrive_as_warp_at(memory.stage_is_empty(last_stage));
  }
  settle(dk[0]);
  settle(dv[0]);
  const float dk_factor = n.scale * (Tile::has_row_mask ? 1.0f : n.dropout.factor);
  const Head any{own.batch, own.first_head};
  if (grads.one_pass.parts > 1) {
    const int columns = static_cast<int>(n.columns);
    store_part(part_of_dk(n, grads.one_pass, any), n.kv_heads * n.depth, warp_first, columns, static_cast<int>(n.depth),
               dk[0], dk_factor);
    store_part(part_of_dv(n, grads.one_pass, any), n.kv_heads * n.value_depth, warp_first, columns,
               static_cast<int>(n.value_depth), dv[0], n.dropout.factor);
    arrive_as_warp_at(memory.own_is_empty(slot));
    return;
  }
  meet<Tile::threads>(Tile::computing);  // nobody reads k and v any more
  auto store = [&](void* to, T* tile, const Sums<1, Tile::d_tiles>& sums, int64_t depth, int64_t step, float by) {
    T* const head = static_cast<T*>(to) + own.batch * n.columns * step + any.kv_head(n) * depth;
    store_own_rows<Tile>(head, step, made_here(warp_first), static_cast<int>(n.columns), static_cast<int>(depth), tile,
                         sums, by);
  };
  store(grads.dk, k_tile, dk, n.depth, n.k_step, dk_factor);
  store(grads.dv, v_tile, dv, n.value_depth, n.v_step, n.dropout.factor);
  show_to_matrix_units();  // and to the copies that fill the slot again
  arrive_as_warp_at(memory.own_is_empty(slot));
}

template <typename Tile, bool caps, typename T>
__device__ void compute_all(const AttentionGradMaps& maps, const ShortMemory<Tile, T>& memory, const AttentionShape& n,
                            const AttentionGradCall& grads, const ColumnsToTake& work) {
  ShortPlaces<Tile> places;
#pragma unroll 1
  for (StagePlace<Tile::slots> slot;; slot.advance()) {
    wait_at(memory.own_is_full(slot.stage), slot.parity);
    const OwnedColumns& own = memory.columns(slot.stage);
    if (own.number >= work.count) break;
    compute<Tile, caps>(own, slot.stage, places, maps, memory, n, grads);
  }
  if (Tile::has_row_mask && threadIdx.x == 0) wait_for_stored_boxes();
}

template <typename Tile, bool caps, typename T>
__global__ void __launch_bounds__(Tile::block_threads, Tile::blocks)
    one_pass_short_kernel(const __grid_constant__ AttentionGradMaps maps, const __grid_constant__ AttentionShape n,
                          const __grid_constant__ AttentionGradCall grads, const __grid_constant__ ColumnsToTake work) {
  if constexpr (has_warpgroups) {
    const ShortMemory<Tile, T> memory;
    if (threadIdx.x == 0) memory.set_up_barriers();
    __syncthreads();
    const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp < Tile::first_loading_warp) {
      take_registers<Tile::computing_registers>();
      return compute_all<Tile, caps>(maps, memory, n, grads, work);
    }
    give_registers<Tile::helping_registers>();
    if (warp < Tile::first_adding_warp) return load<Tile>(maps, memory, n, grads, work);
    const int buffer = warp - Tile::first_adding_warp;
    if (buffer < Tile::adding_warps) add_shares(memory, n, grads, work, buffer);
  } else {
    __trap();
  }
}

template <typename Tile, typename T>
cudaError_t launch(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  AttentionGradMaps maps{};
  if (cudaError_t error = maps.fill(shape, grads, Tile::others, Tile::own, Tile::box); error != cudaSuccess)
    return error;
  if constexpr (Tile::has_row_mask)
    if (cudaError_t error = maps.fill_scores(shape, grads.scores, Tile::mask_bytes, Tile::others); error != cudaSuccess)
      return error;
  int multiprocessors = 0;
  if (cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess) return error;
  const int64_t row_tiles = (shape.rows + one_pass_rows - 1) / one_pass_rows,
                column_tiles = (shape.columns + Tile::own - 1) / Tile::own, parts = grads.one_pass.parts,
                count = shape.batch * shape.kv_heads * parts * column_tiles;
  const ColumnsToTake work{static_cast<int>(row_tiles),
                           static_cast<int>(column_tiles),
                           static_cast<int>(grouped_heads<Tile>(shape, row_tiles, parts, multiprocessors)),
                           static_cast<int>(parts),
                           static_cast<int>(count),
                           grads.one_pass.turns + turn_count(shape)};
  auto launch_kernel = [&](auto kernel) {
    return launch_mma(kernel, std::min<int64_t>(count, multiprocessors), Tile::block_threads,
                      ShortMemory<Tile, T>::bytes, stream, maps, shape, grads, work);
  };
  if constexpr (Tile::has_row_mask || Tile::depth != 64)
    return launch_kernel(one_pass_short_kernel<Tile, false, T>);
  else
    return shape.softcap > 0.0f ? launch_kernel(one_pass_short_kernel<Tile, true, T>)
                                : launch_kernel(one_pass_short_kernel<Tile, false, T>);
}

}  // namespace

cudaError_t attention_grad_one_pass_short(const AttentionShape& shape, const AttentionGradCall& grads,
                                          cudaStream_t stream) {
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const bool drops = shape.dropout.blocks > 0;
    const int64_t depth = one_pass_depth(std::max(shape.depth, shape.value_depth), shape.softcap > 0.0f);
    if (depth == 96)
      return drops ? launch<ShortTile<96, true, 3, 2, 0>, T>(shape, grads, stream)
                   : launch<ShortTile<96, false, 3, 2, 0>, T>(shape, grads, stream);
    if (depth == 80)
      return drops ? launch<ShortTile<80, true, 3, 2, 0>, T>(shape, grads, stream)
                   : launch<ShortTile<80, false, 3, 2, 0>, T>(shape, grads, stream);
    const int mask_bytes = !shape.mask || shape.mask_strides[2] == 0 ? 0 : shape.mask_type == Scalar::F32 ? 4 : 2;
    if (depth == 32 && mask_bytes == 4)
      return drops ? launch<ShortTile<32, true, 3, 3, 4>, T>(shape, grads, stream)
                   : launch<ShortTile<32, false, 3, 3, 4>, T>(shape, grads, stream);
    if (depth == 32 && mask_bytes == 2)
      return drops ? launch<ShortTile<32, true, 4, 3, 2>, T>(shape, grads, stream)
                   : launch<ShortTile<32, false, 4, 3, 2>, T>(shape, grads, stream);
    if (depth == 32)
      return drops ? launch<ShortTile<32, true, 4, 3, 0>, T>(shape, grads, stream)
                   : launch<ShortTile<32, false, 4, 3, 0>, T>(shape, grads, stream);
    // The mask's tile takes the place of a buffer of shares, and of a stage where bits are kept, too.
    if (mask_bytes == 4)
      return drops ? launch<ShortTile<64, true, 2, 2, 4>, T>(shape, grads, stream)
                   : launch<ShortTile<64, false, 3, 2, 4>, T>(shape, grads, stream);
    if (mask_bytes == 2)
      return drops ? launch<ShortTile<64, true, 3, 2, 2>, T>(shape, grads, stream)
                   : launch<ShortTile<64, false, 3, 2, 2>, T>(shape, grads, stream);
    return drops ? launch<ShortTile<64, true, 3, 3, 0>, T>(shape, grads, stream)
                 : launch<ShortTile<64, false, 3, 3, 0>, T>(shape, grads, stream);
  });
}

}  // namespace plimsoll::cuda
