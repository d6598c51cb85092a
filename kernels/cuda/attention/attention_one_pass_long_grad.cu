#include "kernels/cuda/attention/attention_one_pass.cuh"

// One pass as in attention_one_pass_grad.cu, for heads of up to 256 elements. The sums of dk and dv of 64 columns fill
// the registers of two warpgroups: each has 128 elements of a head. Scores, and dP, they share by rows, 32 each, so
// that weights and dS pass by shared memory, as left operands of all other products. There is room for one tile of q
// and one of dy, which come while the products that do not read them run.

namespace plimsoll::cuda {
namespace {

struct LongTile : WarpgroupTile<256, 1, 1, 1> {
  static constexpr int computing_registers = 224, helping_registers = 56, batches = 4;
  static constexpr int groups_of_depth = 2, computing_threads = groups_of_depth * warpgroup_threads;
  static constexpr int first_adding_warp = 8, first_loading_warp = 10;
  static constexpr int block_threads = computing_threads + warpgroup_threads;
  // Of one warpgroup.
  static constexpr int share_depth = depth / groups_of_depth, share_elements = one_pass_rows * share_depth;
  static constexpr int share_tiles = share_depth / 8;

  // Barriers: where all compute, and where q, dy and the shares are handed over and come back.
  static constexpr int computing = 1, q_is_full = 2, q_is_empty = 3, dy_is_full = 4, dy_is_empty = 5, share_is_full = 6,
                       share_is_empty = share_is_full + groups_of_depth;
  static constexpr int at_tile = computing_threads + 32, at_share = warpgroup_threads + adding_threads;
};

// The 32 rows of a tile whose scores a warpgroup makes.
struct HalfTile : LongTile {
  static constexpr int others = 32, n_tiles = others / 8;
};
// How a warpgroup's sums of 64 columns stand in a tile that both use.
using StoredTile = WarpgroupTile<LongTile::share_depth, 2, 1, 1>;

template <typename T>
struct LongMemory {
  T *own_k, *own_v, *q, *dy;
  T *weights, *ds;     // [64, 64], the transposes of what dropout left of the probabilities, and of dS
  float* all_shares;   // [groups, tiles of 8 elements, threads of a group, 4]
  float *lse, *delta;  // of rows
  uint32_t* words;     // [2, 64] kept bits
  float* all_before;   // [groups, batches, of a batch, adding threads, 4]

  static constexpr int tile_elements = LongTile::own_elements, square = one_pass_rows * LongTile::own;
  static constexpr int before_elements = LongTile::batches * words_of_batch * adding_threads * 4;
  static constexpr int word_count = LongTile::own / 32 * one_pass_rows;
  static constexpr int bytes =
      (4 * tile_elements + 2 * square) * static_cast<int>(sizeof(T)) +
      (LongTile::groups_of_depth * (LongTile::share_elements + before_elements) + 2 * one_pass_rows + word_count) *
          static_cast<int>(sizeof(float));

  __device__ explicit LongMemory(void* shared)
      : own_k(static_cast<T*>(shared)),
        own_v(own_k + tile_elements),
        q(own_v + tile_elements),
        dy(q + tile_elements),
        weights(dy + tile_elements),
        ds(weights + square),
        all_shares(reinterpret_cast<float*>(ds + square)),
        lse(all_shares + LongTile::groups_of_depth * LongTile::share_elements),
        delta(lse + one_pass_rows),
        words(reinterpret_cast<uint32_t*>(delta + one_pass_rows)),
        all_before(reinterpret_cast<float*>(words + word_count)) {}

  __device__ float* share(int group) const { return all_shares + group * LongTile::share_elements; }
  __device__ float* before(int group) const { return all_before + group * before_elements; }
};

template <typename T>
using LongBlock = Block<LongTile, LongMemory<T>>;

// ---- Loading ----

// A warp's copies of 64 rows of a head, four at a time. What lies outside the head becomes 0.
template <typename T>
__device__ void load_rows(T* tile, const T* head, int64_t step, int first, int rows, int depth) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 8, d = lane % 8 * 8;
  const T* from = head + int64_t{first + row} * step + d;
  const int place = LongTile::place<one_pass_rows>(row, d), left = rows - first - row;
#pragma unroll 1
  for (int i = 0; i < LongTile::depth; i += 64) {
    T* const to = tile + i * one_pass_rows;
    const T* at = from + i;
    const int left_here = d + i < depth ? left : 0;
#pragma unroll
    for (int pass = 0; pass < one_pass_rows; pass += 4) {
      // Four rows further on, the words of a row stand with their third bit turned.
      copy_async(to + (place ^ pass % 8 * 8) + pass * 64, at, pass < left_here);
      at += 4 * step;
    }
  }
}

// Of rows from `first` on; 0 beyond the last.
__device__ inline void load_of_rows(float* to, const float* from, const AttentionShape& n, const Head& head,
                                    int first) {
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x) % 32; i < one_pass_rows; i += 32) {
    const bool inside = first + i < n.rows;
    copy_word_async(to + i, from + (inside ? head.lse(n, first + i) : 0), inside);
  }
}

__device__ inline void hand_over(int barrier) {
  commit_copies();
  wait_for_copies<0>();
  show_to_matrix_units();
  arrive<LongTile::at_tile>(barrier);
}

// What a warp does each: bring k and tiles of q, or v and tiles of dy.
struct DrawingTile : LongTile {
  static constexpr int threads = 32;
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % 32; }
};
template <bool drops, typename T>
__device__ void load_q(const LongBlock<T>& block, const AttentionShape& n, const AttentionGradCall& grads) {
  const Head& any = block.any;
  const KeptDraws draws(n, any);
  const int depth = static_cast<int>(n.depth), steps = block.walk.steps();
  if (steps == 0) return;
  Walk at = block.walk;
  load_rows(block.memory.own_k, static_cast<const T*>(grads.k) + any.k(n), n.k_step, block.first,
            static_cast<int>(n.columns), depth);
  for (int step = 0; step < steps; at.advance(), ++step) {
    const Head head{any.b, any.h + at.head};
    const int row = at.tile * one_pass_rows;
    if (step > 0) meet<LongTile::at_tile>(LongTile::q_is_empty);
    load_rows(block.memory.q, static_cast<const T*>(grads.q) + head.q(n), n.q_step, row, static_cast<int>(n.rows),
              depth);
    load_of_rows(block.memory.lse, grads.one_pass.log2_lse, n, head, row);
    if (drops)
      TileBits<DrawingTile, Owner::Columns>::draw(block.memory.words, draws, at.head * n.rows + row, block.first);
    hand_over(LongTile::q_is_full);
  }
}
template <typename T>
__device__ void load_dy(const LongBlock<T>& block, const AttentionShape& n, const AttentionGradCall& grads) {
  const Head& any = block.any;
  const int depth = static_cast<int>(n.value_depth), steps = block.walk.steps();
  if (steps == 0) return;
  Walk at = block.walk;
  load_rows(block.memory.own_v, static_cast<const T*>(grads.v) + any.v(n), n.v_step, block.first,
            static_cast<int>(n.columns), depth);
  for (int step = 0; step < steps; at.advance(), ++step) {
    const Head head{any.b, any.h + at.head};
    const int row = at.tile * one_pass_rows;
    if (step > 0) meet<LongTile::at_tile>(LongTile::dy_is_empty);
    load_rows(block.memory.dy, static_cast<const T*>(grads.dy) + head.y(n), n.heads * n.value_depth, row,
              static_cast<int>(n.rows), depth);
    load_of_rows(block.memory.delta, grads.delta, n, head, row);
    hand_over(LongTile::dy_is_full);
  }
}

// ---- Adding ----

// What a warp does for each computing warpgroup: add its shares, in turns of their own.
template <typename T>
__device__ void add_shares_of(int group, const LongBlock<T>& block, const AttentionShape& n,
                              const AttentionGradCall& grads) {
  Walk at = block.walk;
  const bool leads = threadIdx.x % 32 == 0;
  const float* const share = block.memory.share(group);
  const int steps = at.steps();
  for (int step = 0; step < steps; at.advance(), ++step) {
    const Head head{block.any.b, block.any.h + at.head};
    const Tiles columns = columns_of<LongTile>(n, at.tile, block.open);
    const int turn = block.own - columns.first;
    const bool is_last = turn + 1 == columns.count(), is_read_again = step + 1 < steps;
    const int64_t number =
        ((head.b * n.heads + head.h) * block.row_tiles + at.tile) * LongTile::groups_of_depth + group;
    float* const sums = grads.one_pass.sums + number * LongTile::share_elements;
    int* const turns = grads.one_pass.turns + number;
    meet<LongTile::at_share>(LongTile::share_is_full + group);
    if (leads)
      while (turns_taken(turns) < turn) {
      }
    __syncwarp();
    if (is_last) {
      const int first_d = group * LongTile::share_depth;
      write_dq<LongTile>(static_cast<T*>(grads.dq) + head.q(n) + first_d, n, at.tile * one_pass_rows,
                         static_cast<int>(n.depth) - first_d, turn > 0 ? sums : nullptr, share,
                         block.memory.before(group), n.scale * n.dropout.factor);
    } else if (leads) {
      start_writing(sums, share, LongTile::share_elements, turn > 0);
      wait_for_reads();
    }
    __syncwarp();
    if (is_read_again) arrive<LongTile::at_share>(LongTile::share_is_empty + group);
    if (leads && !is_last) {
      wait_for_writes();
      take_turn(turns, turn);
    }
    __syncwarp();
  }
}

// ---- Computing ----

// Starts sums of a warpgroup's 32 rows: all products of own rows with them.
template <typename T>
__device__ void start_half_scores(Sums<1, HalfTile::n_tiles>& sums, const T* own_tile, const T* half_tile) {
  const uint64_t own = shared_matrix(made_here(own_tile)), half = shared_matrix(made_here(half_tile));
  begin_products();
#pragma unroll
  for (int d = 0; d < LongTile::depth; d += 16)
    start_narrow_product<T>(sums[0], own + matrix_step<LongTile::own>(0, d), half + matrix_step<one_pass_rows>(0, d),
                            d > 0);
  commit_products();
}

// Starts sums += left * rows of the other tile, for the elements of the head at which `others` begins.
template <typename T>
__device__ void start_columns(Sums<1, LongTile::share_tiles>& sums, const T* left_tile, const T* others_tile) {
  const uint64_t left = shared_matrix(made_here(left_tile)), others = shared_matrix(made_here(others_tile));
  begin_products();
#pragma unroll
  for (int row = 0; row < one_pass_rows; row += 16)
#pragma unroll
    for (int d = 0; d < LongTile::share_depth; d += 64)
      start_rows_product<T>(&sums[0][d / 8], left + matrix_step<LongTile::own>(0, row),
                            others + matrix_step<one_pass_rows>(row, d));
  commit_products();
}

// Starts dq = dS * k, for the elements of the head at which k begins.
template <typename T>
__device__ void start_share(Sums<1, LongTile::share_tiles>& dq, const T* ds_tile, const T* k_tile) {
  const uint64_t ds = shared_matrix(made_here(ds_tile)), k = shared_matrix(made_here(k_tile));
  begin_products();
#pragma unroll
  for (int column = 0; column < LongTile::own; column += 16)
#pragma unroll
    for (int d = 0; d < LongTile::share_depth; d += 64)
      start_transposed_product<T>(&dq[0][d / 8], ds + matrix_step<LongTile::own>(column, 0),
                                  k + matrix_step<LongTile::own>(column, d), column > 0);
  commit_products();
}

// Writes a warp's 16 columns of a transposed tile, for the 32 rows of its warpgroup.
template <typename T>
__device__ void store_half(T* tile, const Weights<HalfTile>& half, int group) {
  const int thread = made_here(static_cast<int>(threadIdx.x)) % warpgroup_threads, lane = thread % 32;
  const int column = thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
  const int place = column * one_pass_rows + (lane / 16 ^ lane % 8) * 8 ^ 32 * group;
#pragma unroll
  for (int k = 0; k < HalfTile::others / 16; ++k) store_matrices(tile + (place ^ 16 * k), half.at[k].at);
}

template <bool drops, bool caps, typename T>
__device__ void compute(const LongBlock<T>& block, const AttentionShape& n, const AttentionGradCall& grads) {
  const auto& memory = block.memory;
  const Head& any = block.any;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int group = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  const int warp_first = block.first + warp * LongTile::warp_rows, columns = static_cast<int>(n.columns);
  const Range open = open_others<Owner::Columns>(n, block.first, LongTile::own);
  const bool adds = adds_to_columns(n, block.mask_tiles, block.first);
  const float to_log2 = n.scale * log2_e;
  OwnAdditions<HalfTile> of_own{};
  if (adds) of_own.template load_with_slopes<T>(n, any, Place<Owner::Columns>{warp_first + lane / 4, 0});
  Sums<1, LongTile::share_tiles> dk = {}, dv = {}, dq;
  Sums<1, HalfTile::n_tiles> scores, dp;
  Weights<HalfTile> half;
  // Where the warpgroup's rows begin in a tile, and where its elements of the head do.
  const int first_of_rows = HalfTile::others * group * 64, first_of_elements = LongTile::share_depth * group * 64;
  Walk at = block.walk;
  const int steps = at.steps();
  for (int step = 0; step < steps; at.advance(), ++step) {
    const int first_of_half = at.tile * one_pass_rows + HalfTile::others * group;
    const Place<Owner::Columns> place{warp_first + lane / 4, first_of_half + lane % 4 * 2};
    meet<LongTile::at_tile>(LongTile::q_is_full);
    start_half_scores(scores, memory.own_k, memory.q + first_of_rows);
    meet<LongTile::at_tile>(LongTile::dy_is_full);
    start_half_scores(dp, memory.own_v, memory.dy + first_of_rows);
    wait_for_products<1>();
    settle(scores[0]);
    if (first_of_half < open.first || first_of_half + HalfTile::others > open.end)
      close_outside<HalfTile, Owner::Columns>(scores, n, made_here(place));
    const int of_half = HalfTile::others * group + lane % 4 * 2;
    const KeptColumns bits{memory.words + warp / 2 * one_pass_rows + of_half, 7 - place.own % 32};
    auto lse_of_row = [&](int t, int e) { return memory.lse[of_half + 8 * t + e % 2]; };
    if constexpr (caps) {
      capped_probabilities<HalfTile, T>(scores, half, Cap(n), to_log2, lse_of_row,
                                        [&](int, int, int e) { return of_own.at[0][e / 2]; });
    } else {
      if (adds) of_own.add_to(scores);
      probabilities<HalfTile>(scores, to_log2, lse_of_row);
      half.template round<T>(scores);
    }
    if (drops) half.keep([&](int t, int of_pair) { return KeptColumns::pair(bits.of_rows(t), of_pair); });
    store_half(memory.weights, half, group);
    wait_for_products<0>();
    settle(dp[0]);
    differentiate_columns<HalfTile, drops>(
        dp, scores, bits, [&](int t) { return *reinterpret_cast<const float2*>(memory.delta + of_half + 8 * t); });
    half.template round<T>(dp);
    store_half(memory.ds, half, group);
    show_to_matrix_units();
    meet<LongTile::computing_threads>(LongTile::computing);  // the other warpgroup's rows are there, too
    start_columns(dk, memory.ds, memory.q + first_of_elements);
    start_columns(dv, memory.weights, memory.dy + first_of_elements);
    start_share(dq, memory.ds, memory.own_k + first_of_elements);
    const bool is_last = step + 1 == steps;
    wait_for_products<2>();
    if (!is_last) arrive<LongTile::at_tile>(LongTile::q_is_empty);
    wait_for_products<1>();
    if (!is_last) arrive<LongTile::at_tile>(LongTile::dy_is_empty);
    if (step > 0) meet<LongTile::at_share>(LongTile::share_is_empty + group);
    wait_for_products<0>();
    settle(dq[0]);
    float4* const share = reinterpret_cast<float4*>(memory.share(group)) + threadIdx.x % warpgroup_threads;
#pragma unroll
    for (int t = 0; t < LongTile::share_tiles; ++t)
      share[t * warpgroup_threads] = make_float4(dq[0][t][0], dq[0][t][1], dq[0][t][2], dq[0][t][3]);
    show_to_matrix_units();  // and to the copy of the share
    arrive<LongTile::at_share>(LongTile::share_is_full + group);
  }
  settle(dk[0]);
  settle(dv[0]);
  const int first_d = LongTile::share_depth * group;
  if (grads.one_pass.parts > 1) {
    const int depth = static_cast<int>(n.depth) - first_d, value_depth = static_cast<int>(n.value_depth) - first_d;
    store_part(part_of_dk(n, grads.one_pass, any) + first_d, n.kv_heads * n.depth, warp_first, columns, depth, dk[0],
               n.scale * n.dropout.factor);
    store_part(part_of_dv(n, grads.one_pass, any) + first_d, n.kv_heads * n.value_depth, warp_first, columns,
               value_depth, dv[0], n.dropout.factor);
    return;
  }
  meet<LongTile::computing_threads>(LongTile::computing);  // nobody reads k and v any more
  store_rows<StoredTile>(static_cast<T*>(grads.dk) + any.k(n) + first_d, n.k_step, warp_first, columns,
                         static_cast<int>(n.depth) - first_d, true, memory.own_k, dk,
                         [&](int, int) { return n.scale * n.dropout.factor; });
  store_rows<StoredTile>(static_cast<T*>(grads.dv) + any.v(n) + first_d, n.v_step, warp_first, columns,
                         static_cast<int>(n.value_depth) - first_d, true, memory.own_v, dv,
                         [&](int, int) { return n.dropout.factor; });
}

template <bool drops, bool caps, typename T>
__device__ void grad_of_long_heads(const AttentionShape& n, const AttentionGradCall& grads, int row_tiles,
                                   int column_tiles, int grouped) {
  const LongBlock<T> block(n, row_tiles, column_tiles, grouped, grads.one_pass.parts, static_cast<int>(blockIdx.x));
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < LongTile::first_adding_warp) {
    take_registers<LongTile::computing_registers>();
    return compute<drops, caps>(block, n, grads);
  }
  give_registers<LongTile::helping_registers>();
  if (warp == LongTile::first_loading_warp) return load_q<drops>(block, n, grads);
  if (warp > LongTile::first_loading_warp) return load_dy(block, n, grads);
  if (warp == LongTile::first_adding_warp) clear_rows<T>(block, n, grads);
  add_shares_of(warp - LongTile::first_adding_warp, block, n, grads);
}

template <bool drops, bool caps, typename T>
__global__ void __launch_bounds__(LongTile::block_threads, LongTile::blocks)
    one_pass_long_kernel(AttentionShape n, AttentionGradCall grads, int row_tiles, int column_tiles, int grouped) {
  if constexpr (has_warpgroups)
    grad_of_long_heads<drops, caps, T>(n, grads, row_tiles, column_tiles, grouped);
  else
    __trap();
}

}  // namespace

cudaError_t attention_grad_one_pass_long(const AttentionShape& shape, const AttentionGradCall& grads,
                                         cudaStream_t stream) {
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    auto launch = [&](auto kernel) {
      return launch_one_pass<LongTile>(kernel, LongMemory<T>::bytes, shape, grads, stream);
    };
    const bool drops = shape.dropout.blocks > 0;
    if (shape.softcap > 0.0f)
      return drops ? launch(one_pass_long_kernel<true, true, T>) : launch(one_pass_long_kernel<false, true, T>);
    return drops ? launch(one_pass_long_kernel<true, false, T>) : launch(one_pass_long_kernel<false, false, T>);
  });
}

}  // namespace plimsoll::cuda
