#include "kernels/cuda/attention/attention_warpgroup_grad.cuh"

// Serves attention_grad ("mma") on Hopper, with the launches and sums of attention_mma_grad.cu. Scores become
// probabilities while dP is computed, and dS comes while dv is. Calls with a cap have kernels of their own, which wait
// for dP first: the cap's slope is multiplied into it before masks are added, so that no registers hold slopes. dS
// without the slope, which masks have as their gradient, they do not write.

namespace plimsoll::cuda {
namespace {

// q and dy, or k and v, are owned; the other pair passes in stages.
template <typename Tile, typename T>
struct GradMemory {
  T *own_a, *own_b, *others;
  float* all_constants;  // [stages, 2, others] lse and delta of rows, or what the mask adds to columns
  uint32_t* all_words;   // [stages, own / 32, others] kept bits where columns are owned

  static constexpr int bytes =
      (2 * Tile::own_elements + 2 * Tile::stages * Tile::other_elements) * static_cast<int>(sizeof(T)) +
      Tile::stages * Tile::others * (2 + Tile::own / 32) * static_cast<int>(sizeof(float));

  __device__ explicit GradMemory(void* shared)
      : own_a(static_cast<T*>(shared)),
        own_b(own_a + Tile::own_elements),
        others(own_b + Tile::own_elements),
        all_constants(reinterpret_cast<float*>(others + 2 * Tile::stages * Tile::other_elements)),
        all_words(reinterpret_cast<uint32_t*>(all_constants + Tile::stages * 2 * Tile::others)) {}

  __device__ T* a(int stage) const { return others + 2 * stage * Tile::other_elements; }
  __device__ T* b(int stage) const { return a(stage) + Tile::other_elements; }
  __device__ float* constants(int stage) const { return all_constants + stage * 2 * Tile::others; }
  __device__ uint32_t* words(int stage) const { return all_words + stage * (Tile::own / 32) * Tile::others; }
};

// ---- dS in memory ----

// Four words of each of a quad's threads: thread j has word j of four rows of 16 bytes, and gets the words of row j.
__device__ inline void transpose_quad(uint32_t (&words)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(whole_warp, odd ? words[i] : words[i + 1], 1);
    (odd ? words[i] : words[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(whole_warp, high ? words[i] : words[i + 2], 2);
    (high ? words[i] : words[i + 2]) = other;
  }
}

// How dS is written: not at all, rounded, or in f32.
enum class Stores : uint8_t { Nothing, Rounded, Wide };

// The rows of dS, of elements S, that a thread's quad writes: two rows of a head, as in a place of owned rows.
template <typename S>
struct ScoreGradRows {
  S* rows[2];  // null beyond the last
  int pitch;

  __device__ ScoreGradRows(const AttentionShape& n, const Head& head, int first_row, const ScoreGrads& scores)
      : pitch(static_cast<int>(scores.pitch)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 8 * half;
      S* const of_head = static_cast<S*>(scores.at) + (head.b * n.heads + head.h) * n.rows * scores.pitch;
      rows[half] = row < n.rows ? of_head + int64_t{row} * scores.pitch : nullptr;
    }
  }

  template <typename Tile>
  __device__ void store(const Weights<Tile>& ds, int first_column) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int t = 0; t < Tile::n_tiles; t += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = ds.at[(t + i) / 2].at[i % 2 * 2 + half];
        transpose_quad(words);
        const int column = first_column + 8 * (t + static_cast<int>(threadIdx.x) % 4);
        if (rows[half] && column < pitch)
          *reinterpret_cast<uint4*>(rows[half] + column) = make_uint4(words[0], words[1], words[2], words[3]);
      }
  }
  template <int tiles>
  __device__ void store(const float (&ds)[tiles][4], float factor, int first_column) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        const int column = first_column + 8 * t + 2 * (static_cast<int>(threadIdx.x) % 4);
        if (rows[half] && column < pitch)
          *reinterpret_cast<float2*>(rows[half] + column) =
              make_float2(ds[t][2 * half] * factor, ds[t][2 * half + 1] * factor);
      }
  }
  // Columns from `first` to before `end`, by words of 8 bytes.
  __device__ void clear(int first, int end) const {
    constexpr int length = 8 / sizeof(S);
#pragma unroll
    for (S* row : rows)
      for (int at = first + length * (static_cast<int>(threadIdx.x) % 4); row && at < end; at += 4 * length)
        *reinterpret_cast<uint2*>(row + at) = uint2{};
  }
};

template <typename Tile, bool drops, bool caps, Stores stores, typename T>
__device__ void grad_of_rows(const AttentionShape& n, bool aligned, const AttentionGradCall& grads, int row_tiles) {
  constexpr int ahead = Tile::stages - 1;
  const GradMemory<Tile, T> tiles(tile_memory());
  const int64_t number = blockIdx.x / row_tiles;
  const int first = (row_tiles - 1 - static_cast<int>(blockIdx.x % row_tiles)) * Tile::own;
  const Head head{number / n.heads, number % n.heads};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_first = first + warp * Tile::warp_rows, rows = static_cast<int>(n.rows);
  const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
  const int columns = static_cast<int>(n.columns);
  const Range range = range_of_others<Owner::Rows>(n, head, first, Tile::own, Tile::others);
  const RowLoader<Tile, Tile::others, T> k_rows(static_cast<const T*>(grads.k) + head.k(n), n.k_step, columns, depth,
                                                aligned);
  const RowLoader<Tile, Tile::others, T> v_rows(static_cast<const T*>(grads.v) + head.v(n), n.v_step, columns,
                                                value_depth, aligned);
  const Range open = open_others<Owner::Rows>(n, first, Tile::own);
  const bool adds = is_mask_of_columns(n), has_row_mask = n.mask && !adds;
  const ColumnTile* const mask_tiles = tiles_of_mask(n, head);
  const KeptDraws draws(n, head);
  KeptRows<Tile> kept;
  auto load = [&](int stage, int column) {
    if (column < range.end) {
      k_rows.load(tiles.a(stage), column);
      v_rows.load(tiles.b(stage), column);
    }
    commit_copies();
  };
  RowLoader<Tile, Tile::own, T>(static_cast<const T*>(grads.q) + head.q(n), n.q_step, rows, depth, aligned)
      .load(tiles.own_a, first);
  RowLoader<Tile, Tile::own, T>(static_cast<const T*>(grads.dy) + head.y(n), n.heads * n.value_depth, rows, value_depth,
                                aligned)
      .load(tiles.own_b, first);
  for (int i = 0; i < ahead; ++i) load(i, range.first + i * Tile::others);
  if (adds) store_addition<Tile>(tiles.constants(0), addition_of<Tile, T>(n, head, range.first));

  RowConstants constants[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) constants[half] = RowConstants(n, head, warp_first + lane / 4 + 8 * half, grads);
  const float to_log2 = n.scale * log2_e;

  Sums<1, Tile::d_tiles> dq = {};
  Sums<1, Tile::n_tiles> scores, dp;
  Weights<Tile> weights;
  const uint64_t own_q = own_matrix<Tile>(tiles.own_a), own_dy = own_matrix<Tile>(tiles.own_b);
  int stage = 0, column = range.first;
  using ScoreGrad = std::conditional_t<stores == Stores::Wide, float, T>;
  [[maybe_unused]] const ScoreGradRows<ScoreGrad> score_grads(n, head, warp_first + lane / 4, grads.scores);
  if constexpr (stores != Stores::Nothing) score_grads.clear(0, min(range.first, score_grads.pitch));
  for (; column < range.end; column += Tile::others) {
    const Place<Owner::Rows> place{warp_first + lane / 4, column + lane % 4 * 2};
    meet_with_copies<ahead - 1>();  // this tile has arrived, and the one before it is no longer read
    load(stage == 0 ? ahead : stage - 1, column + ahead * Tile::others);
    const float added = adds ? addition_of<Tile, T>(n, head, column + Tile::others) : 0.0f;
    const ColumnTile noted = noted_tile(n, mask_tiles, column);
    start_scores<Tile>(scores, own_q, tiles.a(stage));
    start_scores<Tile>(dp, own_dy, tiles.b(stage));
    if (drops) kept.draw(draws, warp_first, column);
    auto make_differences = [&] {
      settle(dp[0]);
#pragma unroll
      for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          dp[0][t][e] = (drops ? kept.kept(dp[0][t][e], t, e) : dp[0][t][e]) - constants[e / 2].delta;
    };
    wait_for_products<caps ? 0 : 1>();
    settle(scores[0]);
    if constexpr (caps) {
      make_differences();
      cap_with_slopes<Tile>(scores, dp, Cap(n));
    }
    if (has_row_mask) add_row_mask<Tile, Owner::Rows, T>(scores, n, head, place, first, column);
    if (n.segments) close_other_segments<Tile, Owner::Rows>(scores, n, head, place, first, column);
    if (column < open.first || column + Tile::others > open.end) close_outside<Tile, Owner::Rows>(scores, n, place);
    if (adds && noted != ColumnTile::Open) add_additions<Tile>(scores, tiles.constants(stage));
    if (n.slopes) subtract_distances<Tile, Owner::Rows>(scores, slope_of(n, head), place);
    probabilities<Tile>(scores, to_log2, [&](int, int e) { return constants[e / 2].lse; });
    if constexpr (!caps) {
      wait_for_products<0>();
      make_differences();
    }
    multiply_differences<Tile>(dp, scores);
    weights.template round<T>(dp);
    start_weighted_rows<Tile>(dq, weights, tiles.a(stage));
    if constexpr (stores == Stores::Wide) score_grads.store(dp[0], n.dropout.factor, column);
    if constexpr (stores == Stores::Rounded && !drops) score_grads.template store<Tile>(weights, column);
    if constexpr (stores == Stores::Rounded && drops) {
      Weights<Tile> scaled;
#pragma unroll
      for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) dp[0][t][e] *= n.dropout.factor;
      scaled.template round<T>(dp);
      score_grads.template store<Tile>(scaled, column);
    }
    stage = Tile::next(stage);
    if (adds) store_addition<Tile>(tiles.constants(stage), added);
    wait_for_products<0>();
  }
  settle(dq[0]);
  if constexpr (stores != Stores::Nothing) score_grads.clear(column, score_grads.pitch);
  wait_for_copies<0>();
  __syncthreads();  // q and dy have arrived even where no column is met, and nobody reads them any more
  store_rows<Tile>(static_cast<T*>(grads.dq) + head.q(n), n.q_step, warp_first, rows, depth, aligned, tiles.own_a, dq,
                   [&](int, int) { return n.scale * n.dropout.factor; });
}

// lse and delta of a tile's rows; 0 beyond the last.
template <typename Tile>
__device__ void load_constants(float* constants, const AttentionShape& n, const Head& head, int first,
                               const AttentionGradCall& grads) {
  if (threadIdx.x >= 2 * Tile::others) return;
  const int row = first + static_cast<int>(threadIdx.x) % Tile::others;
  const float* from = threadIdx.x < Tile::others ? grads.lse : grads.delta;
  const bool inside = row < n.rows;
  copy_word_async(constants + threadIdx.x, from + (inside ? head.lse(n, row) : 0), inside);
}

enum class Writes { Both, Dk, Dv };  // heads so long that the sums of both do not fit into registers take two launches

template <typename Tile, Writes writes, bool drops, bool caps, typename T>
__device__ void grad_of_columns(const AttentionShape& n, bool aligned, const AttentionGradCall& grads,
                                int column_tiles) {
  constexpr bool writes_dk = writes != Writes::Dv, writes_dv = writes != Writes::Dk;
  using Bits = TileBits<Tile, Owner::Columns>;
  constexpr int ahead = Tile::stages - 1;
  const GradMemory<Tile, T> tiles(tile_memory());
  const int64_t number = blockIdx.x / column_tiles, shared_by = n.heads / n.kv_heads;
  const int first = static_cast<int>(blockIdx.x % column_tiles) * Tile::own;  // the longest of causal ones first
  const int64_t first_head = number % n.kv_heads * shared_by;
  const Head any{number / n.kv_heads, first_head};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_first = first + warp * Tile::warp_rows, rows = static_cast<int>(n.rows),
            columns = static_cast<int>(n.columns);
  const int depth = static_cast<int>(n.depth), value_depth = static_cast<int>(n.value_depth);
  const Range range = range_of_others<Owner::Columns>(n, any, first, Tile::own, Tile::others);
  const RowLoader<Tile, Tile::others, T> q_rows(static_cast<const T*>(grads.q) + any.q(n), n.q_step, rows, depth,
                                                aligned);
  const RowLoader<Tile, Tile::others, T> dy_rows(static_cast<const T*>(grads.dy) + any.y(n), n.heads * n.value_depth,
                                                 rows, value_depth, aligned);
  const Range open = open_others<Owner::Columns>(n, first, Tile::own);
  const bool has_row_mask = n.mask && !is_mask_of_columns(n);
  static_assert(Tile::own == column_tile);
  const bool adds = is_mask_of_columns(n) && noted_tile(n, tiles_of_mask(n, any), first) != ColumnTile::Open;
  const KeptDraws draws(n, any);
  RowTiles at(range, Tile::others, static_cast<int>(shared_by)), loaded = at;
  auto load = [&](int stage) {
    if (!loaded.is_end()) {
      q_rows.load(tiles.a(stage), loaded.row, loaded.head * n.depth);
      dy_rows.load(tiles.b(stage), loaded.row, loaded.head * n.value_depth);
      load_constants<Tile>(tiles.constants(stage), n, {any.b, first_head + loaded.head}, loaded.row, grads);
      if (drops) Bits::draw(tiles.words(stage), draws, loaded.head * n.rows + loaded.row, first);
      loaded.advance();
    }
    commit_copies();
  };
  RowLoader<Tile, Tile::own, T>(static_cast<const T*>(grads.k) + any.k(n), n.k_step, columns, depth, aligned)
      .load(tiles.own_a, first);
  RowLoader<Tile, Tile::own, T>(static_cast<const T*>(grads.v) + any.v(n), n.v_step, columns, value_depth, aligned)
      .load(tiles.own_b, first);
  for (int i = 0; i < ahead; ++i) load(i);
  const float to_log2 = n.scale * log2_e;

  Sums<1, Tile::d_tiles> dk = {}, dv = {};
  Sums<1, Tile::n_tiles> scores, dp;
  Weights<Tile> weights;
  const uint64_t own_k = own_matrix<Tile>(tiles.own_a), own_v = own_matrix<Tile>(tiles.own_b);
  int stage = 0;
  for (; !at.is_end(); at.advance()) {
    const Head head{any.b, first_head + at.head};
    const int row = at.row;
    const Place<Owner::Columns> place{warp_first + lane / 4, row + lane % 4 * 2};
    meet_with_copies<ahead - 1>();  // this tile has arrived, and the one before it is no longer read
    load(stage == 0 ? ahead : stage - 1);
    start_scores<Tile>(scores, own_k, tiles.a(stage));
    if constexpr (writes_dk) start_scores<Tile>(dp, own_v, tiles.b(stage));
    OwnAdditions<Tile> of_own{};
    if (adds) of_own.template load<T>(n, head, place);
    wait_for_products<writes_dk && !caps ? 1 : 0>();
    settle(scores[0]);
    const float* constants = tiles.constants(stage) + lane % 4 * 2;
    const KeptColumns bits = KeptColumns::of<Tile>(tiles.words(stage), first, place);
    auto of_row = [&](int kind, int t) {
      return *reinterpret_cast<const float2*>(constants + kind * Tile::others + 8 * t);
    };
    auto make_differences = [&] {
      settle(dp[0]);
      subtract_deltas_of_rows<Tile, drops>(dp, bits, [&](int t) { return of_row(1, t); });
    };
    if constexpr (caps && writes_dk) {
      make_differences();
      cap_with_slopes<Tile>(scores, dp, Cap(n));
    } else if constexpr (caps) {
      cap_sums<Tile>(scores, n);
    }
    if (has_row_mask) add_row_mask<Tile, Owner::Columns, T>(scores, n, head, place, first, row);
    if (n.segments) close_other_segments<Tile, Owner::Columns>(scores, n, head, place, first, row);
    if (row < open.first || row + Tile::others > open.end) close_outside<Tile, Owner::Columns>(scores, n, place);
    if (adds) of_own.add_to(scores);
    if (n.slopes) subtract_distances<Tile, Owner::Columns>(scores, slope_of(n, head), place);
    probabilities<Tile>(scores, to_log2, [&](int t, int e) {
      const float2 lse = of_row(0, t);
      return in_log2(e % 2 == 0 ? lse.x : lse.y);
    });
    if constexpr (writes_dv) {
      weights.template round<T>(scores);
      if (drops) weights.keep([&](int t, int half) { return KeptColumns::pair(bits.of_rows(t), half); });
      start_weighted_rows<Tile>(dv, weights, tiles.b(stage));
    }
    if constexpr (writes_dk) {
      if constexpr (!caps) {
        wait_for_products<writes_dv ? 1 : 0>();
        make_differences();
      }
      multiply_differences<Tile>(dp, scores);
      if constexpr (writes_dv) wait_for_products<0>();  // dv's weights are read no more
      weights.template round<T>(dp);
      start_weighted_rows<Tile>(dk, weights, tiles.a(stage));
    }
    stage = Tile::next(stage);
    wait_for_products<0>();
  }
  settle(dk[0]);
  settle(dv[0]);
  wait_for_copies<0>();
  __syncthreads();  // k and v have arrived even where there are no rows, and nobody reads them any more
  if constexpr (writes_dk)
    store_rows<Tile>(static_cast<T*>(grads.dk) + any.k(n), n.k_step, warp_first, columns, depth, aligned, tiles.own_a,
                     dk, [&](int, int) { return n.scale * n.dropout.factor; });
  if constexpr (writes_dv)
    store_rows<Tile>(static_cast<T*>(grads.dv) + any.v(n), n.v_step, warp_first, columns, value_depth, aligned,
                     tiles.own_b, dv, [&](int, int) { return n.dropout.factor; });
}

template <typename Tile, bool drops, bool caps, Stores stores, typename T>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    dq_warpgroup_kernel(AttentionShape n, bool aligned, AttentionGradCall grads, int row_tiles) {
  if constexpr (has_warpgroups)
    grad_of_rows<Tile, drops, caps, stores, T>(n, aligned, grads, row_tiles);
  else
    __trap();
}

template <typename Tile, Writes writes, bool drops, bool caps, typename T>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    dk_dv_warpgroup_kernel(AttentionShape n, bool aligned, AttentionGradCall grads, int column_tiles) {
  if constexpr (has_warpgroups)
    grad_of_columns<Tile, writes, drops, caps, T>(n, aligned, grads, column_tiles);
  else
    __trap();
}

template <typename Rows, typename Columns, bool drops, bool caps, typename T>
cudaError_t launch_grads(const AttentionShape& shape, bool aligned, const AttentionGradCall& grads,
                         cudaStream_t stream) {
  const int64_t heads = shape.batch * shape.heads;
  const int64_t row_tiles = (shape.rows + Rows::own - 1) / Rows::own,
                column_tiles = (shape.columns + Columns::own - 1) / Columns::own;
  const auto launch_rows = [&](auto kernel) {
    return launch_mma(kernel, heads * row_tiles, Rows::threads, GradMemory<Rows, T>::bytes, stream, shape, aligned,
                      grads, static_cast<int>(row_tiles));
  };
  if (row_tiles > 0) {
    cudaError_t error = cudaErrorInvalidValue;
    if (!grads.scores.at) error = launch_rows(dq_warpgroup_kernel<Rows, drops, caps, Stores::Nothing, T>);
    if constexpr (!caps)
      if (grads.scores.at)
        error = grads.scores.is_wide ? launch_rows(dq_warpgroup_kernel<Rows, drops, caps, Stores::Wide, T>)
                                     : launch_rows(dq_warpgroup_kernel<Rows, drops, caps, Stores::Rounded, T>);
    if (error != cudaSuccess) return error;
  }
  if (column_tiles == 0) return cudaSuccess;
  auto launch_columns = [&](auto kernel) {
    return launch_mma(kernel, shape.batch * shape.kv_heads * column_tiles, Columns::threads,
                      GradMemory<Columns, T>::bytes, stream, shape, aligned, grads, static_cast<int>(column_tiles));
  };
  if constexpr (Columns::depth <= 128) {
    return launch_columns(dk_dv_warpgroup_kernel<Columns, Writes::Both, drops, caps, T>);
  } else {
    if (cudaError_t error = launch_columns(dk_dv_warpgroup_kernel<Columns, Writes::Dk, drops, caps, T>);
        error != cudaSuccess)
      return error;
    return launch_columns(dk_dv_warpgroup_kernel<Columns, Writes::Dv, drops, caps, T>);
  }
}

template <typename Rows, typename Columns, typename T>
cudaError_t launch(const AttentionShape& shape, bool aligned, const AttentionGradCall& grads, cudaStream_t stream) {
  const bool drops = shape.dropout.blocks > 0;
  if (shape.softcap > 0.0f)
    return drops ? launch_grads<Rows, Columns, true, true, T>(shape, aligned, grads, stream)
                 : launch_grads<Rows, Columns, false, true, T>(shape, aligned, grads, stream);
  return drops ? launch_grads<Rows, Columns, true, false, T>(shape, aligned, grads, stream)
               : launch_grads<Rows, Columns, false, false, T>(shape, aligned, grads, stream);
}

}  // namespace

cudaError_t attention_grad_warpgroup(const AttentionShape& shape, bool aligned, const AttentionGradCall& grads,
                                     cudaStream_t stream) {
  const int64_t depth = shape.depth > shape.value_depth ? shape.depth : shape.value_depth;
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if (depth <= 64)
      return launch<WarpgroupTile<64, 1, 3, 3>, WarpgroupTile<64, 1, 3, 2>, T>(shape, aligned, grads, stream);
    if (depth <= 128)
      return launch<WarpgroupTile<128, 1, 2, 2>, WarpgroupTile<128, 1, 2, 2>, T>(shape, aligned, grads, stream);
    return launch<WarpgroupTile<256, 1, 2, 1>, WarpgroupTile<256, 1, 2, 1>, T>(shape, aligned, grads, stream);
  });
}

}  // namespace plimsoll::cuda
