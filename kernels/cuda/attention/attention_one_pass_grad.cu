#include "kernels/cuda/attention/attention_one_pass.cuh"

// Serves attention_grad ("one_pass") on Hopper, heads of 97 to 128 elements, or 65 with a cap on the scores: five
// products of a tile where two launches make seven. A block owns 64 columns of one key head for each of its computing
// warpgroups, whose dk and dv stay in registers, and walks over the rows; its share of a tile's dq is summed in memory,
// where blocks take turns, so that the bits are the same every time. Another warpgroup fills the stages and waits for
// the turns, so that the first ones do nothing but compute.
//
// Turns at a tile of rows go by the number of the columns. Blocks with neighbouring numbers belong to different heads:
// so many stand side by side that a head's block of columns is ahead when its next block begins. A block waits
// only for blocks with lower numbers, which the card begins first, so that it may hold any number of them.

namespace plimsoll::cuda {
namespace {

// What the computing warpgroups do. Products are started so that the matrix units have work while the threads have
// theirs: dP beside the softmax, dv beside dS, dk beside writing the share. dv is made of two halves of the rows, so
// that where heads have 128 elements there are registers for all: the weights of one half are made once dS of it is.
template <typename Tile, bool drops, bool caps, typename T>
__device__ void compute(const Block<Tile, OnePassMemory<Tile, T>>& block, const AttentionShape& n,
                        const AttentionGradCall& grads) {
  const auto& memory = block.memory;
  const Head& any = block.any;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = __shfl_sync(whole_warp, warp / 4, 0);
  const int group_first = block.first + group * warpgroup_rows, warp_first = block.first + warp * Tile::warp_rows;
  const int columns = static_cast<int>(n.columns);
  const Range open = open_others<Owner::Columns>(n, group_first, warpgroup_rows);
  const bool adds = adds_to_columns(n, block.mask_tiles, group_first);
  const float to_log2 = n.scale * log2_e;
  OwnAdditions<Tile> of_own{};
  if (adds) of_own.template load_with_slopes<T>(n, any, Place<Owner::Columns>{warp_first + lane / 4, 0});
  Sums<1, Tile::d_tiles> dk = {}, dv = {};
  Sums<1, Tile::share_tiles> dq;
  Sums<1, Tile::n_tiles> scores, dp;
  Weights<Tile> weights, ds;
  const uint64_t own_k = own_matrix<Tile>(memory.own_k), own_v = own_matrix<Tile>(memory.own_v);
  const uint64_t k_of_share = shared_matrix(memory.own_k + group * Tile::own * 64);
  static_assert(Tile::stages == one_pass_shares, "shares have buffers of their stages' numbers");
  const int steps = block.walk.steps(), heads = block.walk.heads;
  int stage = 0, head = 0, row = (block.walk.rows.end - 1) * one_pass_rows;
  for (int step = 0; step < steps; ++step) {
    const Place<Owner::Columns> place{warp_first + lane / 4, row + lane % 4 * 2};
    meet<Tile::at_stage>(Tile::stage_is_full + stage);
    start_scores<Tile>(scores, own_k, memory.q(stage));
    start_scores<Tile>(dp, own_v, memory.dy(stage));
    wait_for_products<1>();
    settle(scores[0]);
    if (row < open.first || row + Tile::others > open.end)
      close_outside<Tile, Owner::Columns>(scores, n, made_here(place));
    const float* constants = memory.constants(stage) + lane % 4 * 2;
    const KeptColumns bits = KeptColumns::of<Tile>(memory.words(stage), block.first, place);
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
      if (adds) of_own.add_to(scores);
      probabilities<Tile>(scores, to_log2, lse_of_row);
    }
    constexpr int half = Tile::others / 32, whole = 2 * half;  // in steps of 16 rows
    auto start_dv = [&](auto first_of, auto end_of) {
      constexpr int first = decltype(first_of)::value, end = decltype(end_of)::value;
      if constexpr (!caps) weights.template round<T, first, end>(scores);
      if (drops)
        weights.template keep<first, end>([&](int t, int half) { return KeptColumns::pair(bits.of_rows(t), half); });
      start_weighted_rows<Tile, first, end>(dv, weights, memory.dy(stage));
    };
    auto delta_of_row = [&](int t) { return of_row(1, t); };
    start_dv(std::integral_constant<int, 0>(), std::integral_constant<int, half>());
    wait_for_products<1>();
    settle(dp[0]);
    differentiate_columns<Tile, drops, 2 * half, 2 * whole>(dp, scores, bits, delta_of_row);
    ds.template round<T, half, whole>(dp);
    start_dv(std::integral_constant<int, half>(), std::integral_constant<int, whole>());
    differentiate_columns<Tile, drops, 0, 2 * half>(dp, scores, bits, delta_of_row);
    ds.template round<T, 0, half>(dp);
    store_ds<Tile>(memory.ds, ds);
    show_to_matrix_units();
    meet<Tile::threads>(Tile::computing);  // dS of all columns is there
    start_dq<Tile>(dq, memory.ds, k_of_share);
    start_weighted_rows<Tile>(dk, ds, memory.q(stage));
    if (step >= one_pass_shares) meet<Tile::at_share>(Tile::share_is_empty + stage);
    wait_for_products<1>();
    settle(dq[0]);
    store_share<Tile>(memory.share(stage), dq);
    show_to_matrix_units();  // and to the copy of the share
    arrive<Tile::at_share>(Tile::share_is_full + stage);
    wait_for_products<0>();
    if (step + Tile::stages < steps) arrive<Tile::at_stage>(Tile::stage_is_empty + stage);
    stage = Tile::next(stage);
    if (++head == heads) head = 0, row -= one_pass_rows;
  }
  settle(dk[0]);
  settle(dv[0]);
  if (grads.one_pass.parts > 1) {
    const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
    store_part(part_of_dk(n, grads.one_pass, any), n.kv_heads * n.depth, warp_first, columns, depth, dk[0],
               n.scale * n.dropout.factor);
    store_part(part_of_dv(n, grads.one_pass, any), n.kv_heads * n.value_depth, warp_first, columns, value_depth, dv[0],
               n.dropout.factor);
    return;
  }
  meet<Tile::threads>(Tile::computing);  // nobody reads k and v any more
  store_rows<Tile>(static_cast<T*>(grads.dk) + any.k(n), n.k_step, warp_first, columns, static_cast<int>(n.depth), true,
                   memory.own_k, dk, [&](int, int) { return n.scale * n.dropout.factor; });
  store_rows<Tile>(static_cast<T*>(grads.dv) + any.v(n), n.v_step, warp_first, columns, static_cast<int>(n.value_depth),
                   true, memory.own_v, dv, [&](int, int) { return n.dropout.factor; });
}

template <typename Tile, bool drops, bool caps, typename T>
__device__ void grad_in_one_pass(const AttentionShape& n, const AttentionGradCall& grads, int row_tiles,
                                 int column_tiles, int grouped) {
  const Block<Tile, OnePassMemory<Tile, T>> block(n, row_tiles, column_tiles, grouped, grads.one_pass.parts,
                                                  static_cast<int>(blockIdx.x));
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < Tile::first_adding_warp) {
    take_registers<Tile::computing_registers>();
    return compute<Tile, drops, caps>(block, n, grads);
  }
  give_registers<Tile::helping_registers>();
  if (warp >= Tile::first_loading_warp) return load_stages<Tile, drops>(block, n, grads);
  if (warp == Tile::first_adding_warp) clear_rows<T>(block, n, grads);
  add_shares(block, n, grads, warp - Tile::first_adding_warp);
}

template <typename Tile, bool drops, bool caps, typename T>
__global__ void __launch_bounds__(Tile::block_threads, Tile::blocks)
    one_pass_kernel(AttentionShape n, AttentionGradCall grads, int row_tiles, int column_tiles, int grouped) {
  if constexpr (has_warpgroups)
    grad_in_one_pass<Tile, drops, caps, T>(n, grads, row_tiles, column_tiles, grouped);
  else
    __trap();
}

template <typename Tile, typename T>
cudaError_t launch(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  auto launch = [&](auto kernel) {
    return launch_one_pass<Tile>(kernel, OnePassMemory<Tile, T>::bytes, shape, grads, stream);
  };
  if (shape.softcap > 0.0f)
    return shape.dropout.blocks > 0 ? launch(one_pass_kernel<Tile, true, true, T>)
                                    : launch(one_pass_kernel<Tile, false, true, T>);
  return shape.dropout.blocks > 0 ? launch(one_pass_kernel<Tile, true, false, T>)
                                  : launch(one_pass_kernel<Tile, false, false, T>);
}

}  // namespace

bool takes_one_pass(const AttentionShape& n, bool aligned, const AttentionGradCall& grads) {
  const int64_t depth = n.depth > n.value_depth ? n.depth : n.value_depth;
  // Masks with rows are read by the copy engine, and dS of them, where it is wanted, is stored so.
  const bool has_row_mask = n.mask && n.mask_strides[2] != 0;
  const bool has_copied_mask = depth <= 64 && !grads.scores.is_wide && n.softcap == 0.0f &&
                               n.mask_type != Scalar::Bool && n.mask_strides[3] == 1 &&
                               is_aligned(n.mask, n.mask_strides[2] * (n.mask_type == Scalar::F32 ? 2 : 1));
  const bool is_plain = !n.segments && (has_row_mask ? has_copied_mask : !grads.scores.at);
  // What a mask adds to columns is read once for all heads of a key head.
  const bool takes_columns = has_row_mask || !n.mask || n.mask_strides[1] == 0 || n.heads == n.kv_heads;
  // Columns add what slopes give to them, of one head and where rows have no columns behind them.
  const bool takes_slopes = !n.slopes || (n.causal && n.heads == n.kv_heads && !has_row_mask);
  return grads.one_pass.sums && is_hopper() && depth <= max_one_pass_depth && aligned && is_plain && takes_columns &&
         takes_slopes && n.rows > 0 && n.columns > 0;
}

cudaError_t attention_grad_one_pass(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  const int64_t depth = shape.depth > shape.value_depth ? shape.depth : shape.value_depth;
  const int64_t of_tile = one_pass_depth(depth, shape.softcap > 0.0f);
  const cudaError_t error = of_tile <= 96 ? attention_grad_one_pass_short(shape, grads, stream)
                            : of_tile > 128
                                ? attention_grad_one_pass_long(shape, grads, stream)
                                : with_16_bit_float(shape.type, [&](auto* element) {
                                    using T = std::remove_pointer_t<decltype(element)>;
                                    return launch<OnePassTile<128, 2, 2, 1, 232, 40, 4>, T>(shape, grads, stream);
                                  });
  if (error != cudaSuccess || grads.one_pass.parts == 1) return error;
  return sum_parts_of_heads(shape, grads, stream);
}

}  // namespace plimsoll::cuda
