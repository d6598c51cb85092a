#include "kernels/cuda/attention/attention_one_pass.cuh"
#include "kernels/cuda/common/box_copy.cuh"

// One pass as in attention_one_pass_grad.cu, for heads of up to 256 elements. The sums of dk and dv of 64 columns are
// shared by two warpgroups: each has about half of a head's elements. Scores, and dP, they share by rows, 32 each, so
// that weights and dS pass by shared memory, as left operands of all other products. Of heads of 256 elements there is
// room for one tile of q and one of dy, which come while the products that do not read them run. Of 192 elements beside
// values of 128 there are two, and registers for scores and dP of the next tile, which become weights and dS while the
// other products of this tile run.

namespace plimsoll::cuda {
namespace {

// Elements of a head that a warpgroup makes.
struct Elements {
  int first, count;
  // Of so many elements, in boxes of 64: where their number is odd, one of the two warpgroups makes a box more.
  static constexpr Elements of(int depth, int group, bool first_has_more) {
    const int boxes = depth / 64, of_first = (boxes + (first_has_more ? 1 : 0)) / 2 * 64;
    return group == 0 ? Elements{0, of_first} : Elements{of_first, depth - of_first};
  }
};

// Tiles of heads of up to so many elements in q and k, and in v. `stages` tiles of q and dy are in shared memory at a
// time.
template <int depth_, int value_depth_, int stages_>
struct LongTile : WarpgroupTile<depth_, 1, stages_, 1> {
  using Base = WarpgroupTile<depth_, 1, stages_, 1>;
  using Base::depth, Base::stages;
  static constexpr int value_depth = value_depth_;
  static constexpr int computing_registers = 224, helping_registers = 56, batches = 4;
  static constexpr int groups_of_depth = 2, computing_threads = groups_of_depth * warpgroup_threads;
  static constexpr int first_adding_warp = 8, first_loading_warp = 10;
  static constexpr int block_threads = computing_threads + warpgroup_threads;

  static constexpr Elements of_dk(int group) { return Elements::of(depth, group, true); }
  static constexpr Elements of_dv(int group) { return Elements::of(value_depth, group, false); }
  static constexpr Elements of_dq(int group) { return Elements::of(depth, group, false); }

  // Barriers: where all compute, where q and dy come back, and where shares are handed over and come back.
  static constexpr int computing = 1, q_is_empty = 2, dy_is_empty = q_is_empty + stages,
                       share_is_full = dy_is_empty + stages, share_is_empty = share_is_full + groups_of_depth;
  static constexpr int at_tile = computing_threads + 32, at_share = warpgroup_threads + adding_threads;
  static_assert(share_is_empty + groups_of_depth <= 16);
};

// The 32 rows of a tile whose scores a warpgroup makes.
template <typename Tile>
struct HalfOf : Tile {
  static constexpr int others = 32, n_tiles = others / 8;
};

template <typename Tile, typename T>
struct LongMemory {
  T *own_k, *own_v, *q_stages, *dy_stages;
  T* squares;            // [stages, 2, 64, 64], the transposes of what dropout left of the probabilities, and of dS
  float* all_shares;     // of each group [tiles of 8 elements, threads of a group, 4]
  float* all_constants;  // [stages, 2, 64], lse and delta of rows
  uint32_t* all_words;   // [stages, 2, 64] kept bits
  float* all_before;     // [groups, batches, of a batch, adding threads, 4]
  Barrier* barriers;     // of each stage, that q is there, and that dy is

  static constexpr int square = one_pass_rows * Tile::own, of_k = Tile::own * Tile::depth,
                       of_v = Tile::own * Tile::value_depth;
  static constexpr int before_elements = Tile::batches * words_of_batch * adding_threads * 4;
  static constexpr int word_count = Tile::own / 32 * one_pass_rows;
  static constexpr int bytes = (of_k + of_v + Tile::stages * (of_k + of_v + 2 * square)) * static_cast<int>(sizeof(T)) +
                               (one_pass_rows * Tile::depth + Tile::stages * (2 * one_pass_rows + word_count) +
                                Tile::groups_of_depth * before_elements) *
                                   static_cast<int>(sizeof(float)) +
                               2 * Tile::stages * static_cast<int>(sizeof(Barrier));
  static_assert(bytes <= 227 << 10);

  __device__ explicit LongMemory(void* shared)
      : own_k(static_cast<T*>(shared)),
        own_v(own_k + of_k),
        q_stages(own_v + of_v),
        dy_stages(q_stages + Tile::stages * of_k),
        squares(dy_stages + Tile::stages * of_v),
        all_shares(reinterpret_cast<float*>(squares + 2 * Tile::stages * square)),
        all_constants(all_shares + one_pass_rows * Tile::depth),
        all_words(reinterpret_cast<uint32_t*>(all_constants + Tile::stages * 2 * one_pass_rows)),
        all_before(reinterpret_cast<float*>(all_words + Tile::stages * word_count)),
        barriers(reinterpret_cast<Barrier*>(all_before + Tile::groups_of_depth * before_elements)) {}

  __device__ T* q(int stage) const { return q_stages + stage * of_k; }
  __device__ T* dy(int stage) const { return dy_stages + stage * of_v; }
  __device__ T* weights(int stage) const { return squares + 2 * stage * square; }
  __device__ T* ds(int stage) const { return weights(stage) + square; }
  __device__ float* lse(int stage) const { return all_constants + 2 * stage * one_pass_rows; }
  __device__ float* delta(int stage) const { return lse(stage) + one_pass_rows; }
  __device__ uint32_t* words(int stage) const { return all_words + stage * word_count; }
  __device__ float* share(int group) const { return all_shares + Tile::of_dq(group).first * one_pass_rows; }
  __device__ float* before(int group) const { return all_before + group * before_elements; }
  __device__ Barrier* q_is_full(int stage) const { return barriers + stage; }
  __device__ Barrier* dy_is_full(int stage) const { return barriers + Tile::stages + stage; }

  // By one thread. A stage is full with its boxes, the constants that each thread of a warp brings, and kept bits.
  __device__ void set_up_barriers() const {
    for (int i = 0; i < 2 * Tile::stages; ++i) set_up_barrier(barriers + i, 1 + 32 + 1);
    show_barriers_to_copies();
  }
};

template <typename Tile, typename T>
using LongBlock = Block<Tile, LongMemory<Tile, T>>;

// ---- Loading ----

// What copies of boxes know of the tensors.
struct LongMaps {
  CUtensorMap q, dy, k, v;

  [[nodiscard]] cudaError_t fill(const AttentionShape& n, const AttentionGradCall& grads) {
    constexpr int rows = one_pass_rows;
    for (cudaError_t error :
         {map_rows(q, grads.q, n.batch, n.rows, n.heads, n.depth, n.q_step, rows),
          map_rows(dy, grads.dy, n.batch, n.rows, n.heads, n.value_depth, n.heads * n.value_depth, rows),
          map_rows(k, grads.k, n.batch, n.columns, n.kv_heads, n.depth, n.k_step, rows),
          map_rows(v, grads.v, n.batch, n.columns, n.kv_heads, n.value_depth, n.v_step, rows)})
      if (error != cudaSuccess) return error;
    return cudaSuccess;
  }
};

// Starts the copies of 64 rows of a head. One thread calls it.
template <int depth, typename T>
__device__ void copy_rows(T* tile, const CUtensorMap& map, int64_t head, int row, int64_t batch, Barrier* barrier) {
#pragma unroll
  for (int d = 0; d < depth; d += box_depth)
    copy_box(tile + d * one_pass_rows, map, d, static_cast<int>(head), row, static_cast<int>(batch), barrier);
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

template <typename Tile>
struct DrawingTile : Tile {
  static constexpr int threads = 32;
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % 32; }
};

// What a warp does each: bring k and tiles of q, with their rows' lse and kept bits, or v and tiles of dy, with deltas.
template <typename Tile, bool brings_q, bool drops, typename T>
__device__ void load(const LongMaps& maps, const LongBlock<Tile, T>& block, const AttentionShape& n,
                     const AttentionGradCall& grads) {
  constexpr int depth = brings_q ? Tile::depth : Tile::value_depth;
  constexpr int bytes = one_pass_rows * depth * static_cast<int>(sizeof(T));
  static_assert(Tile::own == one_pass_rows);
  const auto& memory = block.memory;
  const Head& any = block.any;
  const KeptDraws draws(n, any);
  const bool leads = threadIdx.x % 32 == 0;
  const int steps = block.walk.steps();
  Walk at = block.walk;
  int stage = 0;
  for (int step = 0; step < steps; at.advance(), ++step, stage = Tile::next(stage)) {
    const Head head{any.b, any.h + at.head};
    const int row = at.tile * one_pass_rows;
    Barrier* const is_full = brings_q ? memory.q_is_full(stage) : memory.dy_is_full(stage);
    if (step >= Tile::stages) meet<Tile::at_tile>((brings_q ? Tile::q_is_empty : Tile::dy_is_empty) + stage);
    if (leads) {
      arrive_with_copies(is_full, (step == 0 ? 2 : 1) * bytes);
      if (step == 0)
        copy_rows<depth>(brings_q ? memory.own_k : memory.own_v, brings_q ? maps.k : maps.v, any.kv_head(n),
                         block.first, any.b, is_full);
      copy_rows<depth>(brings_q ? memory.q(stage) : memory.dy(stage), brings_q ? maps.q : maps.dy, head.h, row, head.b,
                       is_full);
    }
    load_of_rows(brings_q ? memory.lse(stage) : memory.delta(stage), brings_q ? grads.one_pass.log2_lse : grads.delta,
                 n, head, row);
    arrive_after_own_copies(is_full);
    if constexpr (brings_q && drops)
      TileBits<DrawingTile<Tile>, Owner::Columns>::draw(memory.words(stage), draws, at.head * n.rows + row,
                                                        block.first);
    arrive_as_warp_at(is_full);
  }
}

// ---- Adding ----

// A warpgroup's share of dq of a tile of rows.
template <typename Tile, int group>
struct ShareOf {
  static constexpr int share_elements = one_pass_rows * Tile::of_dq(group).count, batches = Tile::batches;
};

// What a warp does for each computing warpgroup: add its shares, in turns of their own.
template <typename Tile, int group, typename T>
__device__ void add_shares_of(const LongBlock<Tile, T>& block, const AttentionShape& n,
                              const AttentionGradCall& grads) {
  using Share = ShareOf<Tile, group>;
  constexpr int first_d = Tile::of_dq(group).first;
  Walk at = block.walk;
  const bool leads = threadIdx.x % 32 == 0;
  const float* const share = block.memory.share(group);
  const int steps = at.steps();
  for (int step = 0; step < steps; at.advance(), ++step) {
    const Head head{block.any.b, block.any.h + at.head};
    const Tiles columns = columns_of<Tile>(n, at.tile, block.open);
    const int turn = block.own - columns.first;
    const bool is_last = turn + 1 == columns.count(), is_read_again = step + 1 < steps;
    const int64_t number = (head.b * n.heads + head.h) * block.row_tiles + at.tile;
    float* const sums = grads.one_pass.sums + (number * Tile::depth + first_d) * one_pass_rows;
    int* const turns = grads.one_pass.turns + number * Tile::groups_of_depth + group;
    meet<Tile::at_share>(Tile::share_is_full + group);
    if (leads)
      while (turns_taken(turns) < turn) {
      }
    __syncwarp();
    if (is_last) {
      write_dq<Share>(static_cast<T*>(grads.dq) + head.q(n) + first_d, n, at.tile * one_pass_rows,
                      static_cast<int>(n.depth) - first_d, turn > 0 ? sums : nullptr, share, block.memory.before(group),
                      n.scale * n.dropout.factor);
    } else if (leads) {
      start_writing(sums, share, Share::share_elements, turn > 0);
      wait_for_reads();
    }
    __syncwarp();
    if (is_read_again) arrive<Tile::at_share>(Tile::share_is_empty + group);
    if (leads && !is_last) {
      wait_for_writes();
      take_turn(turns, turn);
    }
    __syncwarp();
  }
}

// ---- Computing ----

// Starts sums of a warpgroup's 32 rows: all products of own rows with them, of so many elements.
template <int depth, typename T, int tiles>
__device__ void start_half_scores(Sums<1, tiles>& sums, const T* own_tile, const T* half_tile) {
  const uint64_t own = shared_matrix(made_here(own_tile)), half = shared_matrix(made_here(half_tile));
  begin_products();
#pragma unroll
  for (int d = 0; d < depth; d += 16)
    start_narrow_product<T>(sums[0], own + matrix_step<warpgroup_rows>(0, d), half + matrix_step<one_pass_rows>(0, d),
                            d > 0);
  commit_products();
}

// Starts sums += left * rows of the other tile, for the elements of the head at which `others` begins.
template <typename T, int tiles>
__device__ void start_columns(Sums<1, tiles>& sums, const T* left_tile, const T* others_tile) {
  const uint64_t left = shared_matrix(made_here(left_tile)), others = shared_matrix(made_here(others_tile));
  begin_products();
#pragma unroll
  for (int row = 0; row < one_pass_rows; row += 16)
#pragma unroll
    for (int d = 0; d < 8 * tiles; d += 64)
      start_rows_product<T>(&sums[0][d / 8], left + matrix_step<warpgroup_rows>(0, row),
                            others + matrix_step<one_pass_rows>(row, d));
  commit_products();
}

// Starts dq = dS * k, for the elements of the head at which k begins.
template <typename T, int tiles>
__device__ void start_share(Sums<1, tiles>& dq, const T* ds_tile, const T* k_tile) {
  const uint64_t ds = shared_matrix(made_here(ds_tile)), k = shared_matrix(made_here(k_tile));
  begin_products();
#pragma unroll
  for (int column = 0; column < warpgroup_rows; column += 16)
#pragma unroll
    for (int d = 0; d < 8 * tiles; d += 64)
      start_transposed_product<T>(&dq[0][d / 8], ds + matrix_step<warpgroup_rows>(column, 0),
                                  k + matrix_step<warpgroup_rows>(column, d), column > 0);
  commit_products();
}

// Writes a warp's 16 columns of a transposed tile, for the 32 rows of its warpgroup.
template <typename Half, typename T>
__device__ void store_half(T* tile, const Weights<Half>& half, int group) {
  const int thread = made_here(static_cast<int>(threadIdx.x)) % warpgroup_threads, lane = thread % 32;
  const int column = thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
  const int place = column * one_pass_rows + (lane / 16 ^ lane % 8) * 8 ^ 32 * group;
#pragma unroll
  for (int k = 0; k < Half::others / 16; ++k) store_matrices(tile + (place ^ 16 * k), half.at[k].at);
}

template <typename Tile, int group, bool drops, bool caps, typename T>
__device__ void compute(const LongBlock<Tile, T>& block, const AttentionShape& n, const AttentionGradCall& grads) {
  using Half = HalfOf<Tile>;
  constexpr Elements of_dk = Tile::of_dk(group), of_dv = Tile::of_dv(group), of_dq = Tile::of_dq(group);
  const auto& memory = block.memory;
  const Head& any = block.any;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int warp_first = block.first + warp * Tile::warp_rows, columns = static_cast<int>(n.columns);
  const Range open = open_others<Owner::Columns>(n, block.first, Tile::own);
  const bool adds = adds_to_columns(n, block.mask_tiles, block.first);
  const float to_log2 = n.scale * log2_e;
  OwnAdditions<Half> of_own{};
  if (adds) of_own.template load_with_slopes<T>(n, any, Place<Owner::Columns>{warp_first + lane / 4, 0});
  Sums<1, of_dk.count / 8> dk = {};
  Sums<1, of_dv.count / 8> dv = {};
  Sums<1, of_dq.count / 8> dq;
  Sums<1, Half::n_tiles> scores, dp;
  Weights<Half> half;
  constexpr int first_of_rows = Half::others * group * 64;  // where the warpgroup's rows begin in a box
  Walk at = block.walk;
  const int steps = at.steps();

  uint32_t parity = 0;  // of the stages that are full next
  auto start_scores_of = [&](int stage) {
    wait_at(memory.q_is_full(stage), parity);
    start_half_scores<Tile::depth>(scores, memory.own_k, memory.q(stage) + first_of_rows);
    wait_at(memory.dy_is_full(stage), parity);
    start_half_scores<Tile::value_depth>(dp, memory.own_v, memory.dy(stage) + first_of_rows);
    if (stage + 1 == Tile::stages) parity ^= 1;
  };
  // Makes weights and dS of the tile at which the walk is. So many groups of products were started after dP.
  auto make_weights = [&](int stage, auto started_after) {
    constexpr int behind = decltype(started_after)::value;
    const int first_of_half = at.tile * one_pass_rows + Half::others * group;
    const Place<Owner::Columns> place{warp_first + lane / 4, first_of_half + lane % 4 * 2};
    wait_for_products<1 + behind>();
    settle(scores[0]);
    if (first_of_half < open.first || first_of_half + Half::others > open.end)
      close_outside<Half, Owner::Columns>(scores, n, made_here(place));
    const int of_half = Half::others * group + lane % 4 * 2;
    const KeptColumns bits{memory.words(stage) + warp / 2 * one_pass_rows + of_half, 7 - place.own % 32};
    const float *const lse = memory.lse(stage) + of_half, *const delta = memory.delta(stage) + of_half;
    auto lse_of_row = [&](int t, int e) { return lse[8 * t + e % 2]; };
    if constexpr (caps) {
      capped_probabilities<Half, T>(scores, half, Cap(n), to_log2, lse_of_row,
                                    [&](int, int, int e) { return of_own.at[0][e / 2]; });
    } else {
      if (adds) of_own.add_to(scores);
      probabilities<Half>(scores, to_log2, lse_of_row);
      half.template round<T>(scores);
    }
    if (drops) half.keep([&](int t, int of_pair) { return KeptColumns::pair(bits.of_rows(t), of_pair); });
    store_half(memory.weights(stage), half, group);
    wait_for_products<behind>();
    settle(dp[0]);
    differentiate_columns<Half, drops>(dp, scores, bits,
                                       [&](int t) { return *reinterpret_cast<const float2*>(delta + 8 * t); });
    half.template round<T>(dp);
    store_half(memory.ds(stage), half, group);
  };
  auto start_dk = [&](int stage) {
    start_columns(dk, memory.ds(stage), memory.q(stage) + of_dk.first * one_pass_rows);
  };
  auto start_dv = [&](int stage) {
    start_columns(dv, memory.weights(stage), memory.dy(stage) + of_dv.first * one_pass_rows);
  };
  auto start_dq_of = [&](int stage) { start_share(dq, memory.ds(stage), memory.own_k + of_dq.first * Tile::own); };
  auto store_dq = [&](bool is_first) {
    if (!is_first) meet<Tile::at_share>(Tile::share_is_empty + group);
    settle(dq[0]);
    float4* const share = reinterpret_cast<float4*>(memory.share(group)) + threadIdx.x % warpgroup_threads;
#pragma unroll
    for (int t = 0; t < of_dq.count / 8; ++t)
      share[t * warpgroup_threads] = make_float4(dq[0][t][0], dq[0][t][1], dq[0][t][2], dq[0][t][3]);
    show_to_matrix_units();  // and to the copy of the share
    arrive<Tile::at_share>(Tile::share_is_full + group);
  };
  auto meet_the_others = [&] { meet<Tile::computing_threads>(Tile::computing); };  // the other rows are there, too

  if constexpr (Tile::stages == 1) {
    for (int step = 0; step < steps; at.advance(), ++step) {
      start_scores_of(0);
      make_weights(0, std::integral_constant<int, 0>());
      show_to_matrix_units();
      meet_the_others();
      start_dk(0);
      start_dq_of(0);
      start_dv(0);
      const bool is_last = step + 1 == steps;
      wait_for_products<2>();
      if (!is_last) arrive<Tile::at_tile>(Tile::q_is_empty);
      wait_for_products<0>();
      // The next dy says that the other warpgroup reads neither weights nor dS any more.
      if (!is_last) arrive<Tile::at_tile>(Tile::dy_is_empty);
      store_dq(step == 0);
    }
  } else if (steps > 0) {
    start_scores_of(0);
    make_weights(0, std::integral_constant<int, 0>());
    show_to_matrix_units();
    meet_the_others();
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step + 1 < steps; ++step) {
      const int next = Tile::next(stage);
      start_scores_of(next);
      start_dq_of(stage);
      start_dk(stage);
      start_dv(stage);
      at.advance();
      make_weights(next, std::integral_constant<int, 3>());
      wait_for_products<2>();
      store_dq(step == 0);
      wait_for_products<0>();
      if (step + Tile::stages < steps) {
        arrive<Tile::at_tile>(Tile::q_is_empty + stage);
        arrive<Tile::at_tile>(Tile::dy_is_empty + stage);
      }
      meet_the_others();
      stage = next;
    }
    start_dq_of(stage);
    start_dk(stage);
    start_dv(stage);
    wait_for_products<2>();
    store_dq(steps == 1);
    wait_for_products<0>();
  }
  settle(dk[0]);
  settle(dv[0]);
  const float dk_factor = n.scale * n.dropout.factor, dv_factor = n.dropout.factor;
  const int depth = static_cast<int>(n.depth) - of_dk.first,
            value_depth = static_cast<int>(n.value_depth) - of_dv.first;
  if (grads.one_pass.parts > 1) {
    store_part(part_of_dk(n, grads.one_pass, any) + of_dk.first, n.kv_heads * n.depth, warp_first, columns, depth,
               dk[0], dk_factor);
    store_part(part_of_dv(n, grads.one_pass, any) + of_dv.first, n.kv_heads * n.value_depth, warp_first, columns,
               value_depth, dv[0], dv_factor);
    return;
  }
  meet_the_others();  // nobody reads k and v any more
  // Rows are stored by way of those of the block's warps in a tile, of which each warpgroup has one for itself.
  auto store = [&](T* head, int64_t step, int count, T* own_tile, const auto& sums, const Elements& of, float by) {
    constexpr int of_sums = sizeof(sums[0]) / sizeof(sums[0][0]) * 8;
    T* const tile = own_tile + (of.first - group * 64) * Tile::own;
    store_rows<WarpgroupTile<of_sums, 1, 1, 1>>(head + of.first, step, warp_first, columns, count, true, tile, sums,
                                                [&](int, int) { return by; });
  };
  store(static_cast<T*>(grads.dk) + any.k(n), n.k_step, depth, memory.own_k, dk, of_dk, dk_factor);
  store(static_cast<T*>(grads.dv) + any.v(n), n.v_step, value_depth, memory.own_v, dv, of_dv, dv_factor);
}

template <typename Tile, bool drops, bool caps, typename T>
__device__ void grad_of_long_heads(const LongMaps& maps, const AttentionShape& n, const AttentionGradCall& grads,
                                   int row_tiles, int column_tiles, int grouped) {
  const LongBlock<Tile, T> block(n, row_tiles, column_tiles, grouped, grads.one_pass.parts,
                                 static_cast<int>(blockIdx.x));
  if (threadIdx.x == 0) block.memory.set_up_barriers();
  __syncthreads();
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < Tile::first_adding_warp) {
    take_registers<Tile::computing_registers>();
    return warp < 4 ? compute<Tile, 0, drops, caps>(block, n, grads) : compute<Tile, 1, drops, caps>(block, n, grads);
  }
  give_registers<Tile::helping_registers>();
  if (warp == Tile::first_loading_warp) return load<Tile, true, drops>(maps, block, n, grads);
  if (warp > Tile::first_loading_warp) return load<Tile, false, drops>(maps, block, n, grads);
  if (warp > Tile::first_adding_warp) return add_shares_of<Tile, 1>(block, n, grads);
  clear_rows<T>(block, n, grads);
  add_shares_of<Tile, 0>(block, n, grads);
}

template <typename Tile, bool drops, bool caps, typename T>
__global__ void __launch_bounds__(Tile::block_threads, Tile::blocks)
    one_pass_long_kernel(const __grid_constant__ LongMaps maps, AttentionShape n, AttentionGradCall grads,
                         int row_tiles, int column_tiles, int grouped) {
  if constexpr (has_warpgroups)
    grad_of_long_heads<Tile, drops, caps, T>(maps, n, grads, row_tiles, column_tiles, grouped);
  else
    __trap();
}

template <typename Tile, typename T>
cudaError_t launch(const AttentionShape& shape, const AttentionGradCall& grads, cudaStream_t stream) {
  LongMaps maps;
  if (cudaError_t error = maps.fill(shape, grads); error != cudaSuccess) return error;
  auto launch = [&](auto kernel) {
    return launch_one_pass<Tile>(kernel, LongMemory<Tile, T>::bytes, shape, grads, stream, maps);
  };
  const bool drops = shape.dropout.blocks > 0;
  if (shape.softcap > 0.0f)
    return drops ? launch(one_pass_long_kernel<Tile, true, true, T>)
                 : launch(one_pass_long_kernel<Tile, false, true, T>);
  return drops ? launch(one_pass_long_kernel<Tile, true, false, T>)
               : launch(one_pass_long_kernel<Tile, false, false, T>);
}

}  // namespace

cudaError_t attention_grad_one_pass_long(const AttentionShape& shape, const AttentionGradCall& grads,
                                         cudaStream_t stream) {
  return with_16_bit_float(shape.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const int64_t widest = std::max(shape.depth, shape.value_depth);
    if (one_pass_depth(widest, shape.softcap > 0.0f) > 192)
      return launch<LongTile<256, 256, 1>, T>(shape, grads, stream);
    return shape.value_depth > 128 ? launch<LongTile<192, 192, 1>, T>(shape, grads, stream)
                                   : launch<LongTile<192, 128, 2>, T>(shape, grads, stream);
  });
}

}  // namespace plimsoll::cuda
