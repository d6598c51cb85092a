#pragma once

// Attention on the matrix units. A block owns some rows of one head (or some columns of one key head) and walks over
// the other side in tiles; a warp owns 16 * m_tiles of them and needs nothing from other warps. Scores, their
// probabilities and their gradients stay in registers, as sums of 16 x 8 products.

#include "kernels/cuda/attention/attention_head.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/common/tensor_core.cuh"

#include <climits>
#include <cmath>

namespace plimsoll::cuda {

// Heads of up to `depth` elements. The tail of a row in shared memory puts eight neighbouring rows in different banks.
// Registers are dealt out such that `blocks` fit on a multiprocessor: tensor cores wait less where more warps are
// there.
template <int depth_, int m_tiles_, int warps_, int others_, int blocks_>
struct MmaTile {
  static constexpr int depth = depth_, m_tiles = m_tiles_, warps = warps_, others = others_, blocks = blocks_;
  static constexpr int warp_rows = 16 * m_tiles, own = warp_rows * warps, threads = 32 * warps;
  static constexpr int pitch = depth + 8;
  static constexpr int n_tiles = others / 8, d_tiles = depth / 8;
  static_assert(32 % warp_rows == 0, "a warp's rows share one word of kept bits");

  // Where an element of a tile of `count` rows stands.
  template <int count>
  __device__ static int place(int row, int d) {
    return row * pitch + d;
  }
};

// Sums of a warp: [m_tiles] rows of 16 by [tiles] columns of 8.
template <int m_tiles, int tiles>
using Sums = float[m_tiles][tiles][4];

// A thread's share of tiles of `count` rows of a head. What lies outside the head becomes 0.
template <typename Tile, int count, typename T>
class RowLoader {
 public:
  __device__ RowLoader(const T* head, int64_t step, int rows, int depth, bool aligned)
      : head_(head), step_(step), rows_(rows), all_rows_(rows), depth_(depth), aligned_(aligned) {
    row_ = static_cast<int>(threadIdx.x) / vectors;
    d_ = static_cast<int>(threadIdx.x) % vectors * length;
    from_ = head + row_ * step + d_;
    if (d_ >= depth) rows_ = 0;
  }

  // Rows [first, first + count), `offset` elements further on. Aligned rows are copied beside computing.
  __device__ void load(T* tile, int first, int64_t offset = 0) const {
    if (!aligned_) return load_elements(tile, first, offset);
    const T* from = from_ + first * step_ + offset;
    const int left = rows_ - first - row_;
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int row = row_ + pass * rows_per_pass;
      if (count % rows_per_pass == 0 || row < count)
        copy_async(tile + Tile::template place<count>(row, d_), from, pass * rows_per_pass < left);
      from += rows_per_pass * step_;
    }
  }

 private:
  static constexpr int length = 8, vectors = Tile::depth / length, rows_per_pass = Tile::threads / vectors;
  static constexpr int passes = (count + rows_per_pass - 1) / rows_per_pass;

  __device__ void load_elements(T* tile, int first, int64_t offset) const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count * Tile::depth; i += Tile::threads) {
      const int row = i / Tile::depth, d = i % Tile::depth;
      const bool inside = first + row < all_rows_ && d < depth_;
      tile[Tile::template place<count>(row, d)] = inside ? head_[(first + row) * step_ + offset + d] : narrow<T>(0.0f);
    }
  }

  const T *head_, *from_;
  int64_t step_;
  int row_, d_;
  int rows_;  // 0 where the thread's elements lie beyond the depth
  int all_rows_, depth_;
  bool aligned_;
};

// The left operand at column `at` of a warp's rows.
template <typename Tile, typename T>
__device__ LeftFragment left_fragment(const T* warp_rows, int m, int at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  LeftFragment left;
  load_matrices(left.at, warp_rows + (16 * m + lane % 16) * Tile::pitch + at + lane / 16 * 8);
  return left;
}

// sums = own rows * (rows of the other tile)^T over the whole depth. left(m, k) is the own rows' fragment at depth 16
// k.
template <typename Tile, typename T, typename Left>
__device__ void multiply_rows(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const T* other, Left left_at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* row = other + (lane % 8 + lane / 16 * 8) * Tile::pitch + lane / 8 % 2 * 8;
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int n = 0; n < Tile::n_tiles; ++n)
#pragma unroll
      for (float& sum : sums[m][n]) sum = 0.0f;
#pragma unroll
  for (int k = 0; k < Tile::depth / 16; ++k) {
    LeftFragment left[Tile::m_tiles];
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m) left[m] = left_at(m, k);
#pragma unroll
    for (int n = 0; n < Tile::n_tiles; n += 2) {
      RightFragments right;
      load_matrices(right.at, row + 8 * n * Tile::pitch + 16 * k);
#pragma unroll
      for (int m = 0; m < Tile::m_tiles; ++m) {
        multiply_add<T>(sums[m][n], left[m], right, 0);
        multiply_add<T>(sums[m][n + 1], left[m], right, 1);
      }
    }
  }
}

// Columns 16 k to 16 k + 15 of weights, rounded to T, as a left operand.
template <typename T, int tiles>
__device__ LeftFragment rounded(const float (&weights)[tiles][4], int k) {
  const float(&first)[4] = weights[2 * k], (&second)[4] = weights[2 * k + 1];
  return {{packed_pair<T>(first[0], first[1]), packed_pair<T>(first[2], first[3]), packed_pair<T>(second[0], second[1]),
           packed_pair<T>(second[2], second[3])}};
}

// sums += weights * rows of the other tile, weights being rounded to T.
template <typename Tile, typename T>
__device__ void add_weighted_rows(Sums<Tile::m_tiles, Tile::d_tiles>& sums,
                                  const Sums<Tile::m_tiles, Tile::n_tiles>& weights, const T* other) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* row = other + lane % 16 * Tile::pitch + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < Tile::others / 16; ++k) {
    LeftFragment left[Tile::m_tiles];
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m) left[m] = rounded<T>(weights[m], k);
#pragma unroll
    for (int d = 0; d < Tile::d_tiles; d += 2) {
      RightFragments right;
      load_matrices_transposed(right.at, row + 16 * k * Tile::pitch + 8 * d);
#pragma unroll
      for (int m = 0; m < Tile::m_tiles; ++m) {
        multiply_add<T>(sums[m][d], left[m], right, 0);
        multiply_add<T>(sums[m][d + 1], left[m], right, 1);
      }
    }
  }
}

// Writes a warp's sums as rows [first, first + 16 m_tiles) of a head, by way of its rows of the block's own tile.
template <typename Tile, typename T, typename Factor>
__device__ void store_rows(T* head, int64_t step, int first, int rows, int depth, bool aligned, T* own_tile,
                           const Sums<Tile::m_tiles, Tile::d_tiles>& sums, Factor factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * Tile::warp_rows;
  auto place = [&](int row, int d) { return own_tile + Tile::template place<Tile::own>(warp_row + row, d); };
  __syncwarp();
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float by = factor(m, half);
      const int row = 16 * m + 8 * half + lane / 4;
#pragma unroll
      for (int d = 0; d < Tile::d_tiles; ++d) {
        const float* pair = sums[m][d] + 2 * half;
        *reinterpret_cast<uint32_t*>(place(row, 8 * d + lane % 4 * 2)) = packed_pair<T>(pair[0] * by, pair[1] * by);
      }
    }
  __syncwarp();
  const int length = aligned ? 8 : 1, vectors = Tile::depth / length;
  for (int i = lane; i < Tile::warp_rows * vectors; i += 32) {
    const int row = i / vectors, d = i % vectors * length;
    if (first + row >= rows || d >= depth) continue;
    const T* from = place(row, d);
    T* to = head + (first + row) * step + d;
    if (aligned)
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    else
      *to = *from;
  }
}

// ---- Scores of a tile, as sums of products: times scale they are scores ----

inline constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

enum class Owner { Rows, Columns };

// What the kernels read beside the tensors, and how they may access those.
struct MmaCall {
  KeptBits kept;
  int64_t first_group, groups;  // of batch * kv_heads
  bool aligned;                 // rows of every tensor begin at 16-byte borders and are whole words of 16 bytes
};

// Where a thread's elements of a tile lie: element e of 16 x 8 product (m, n) at own row own + 16 m + 8 (e / 2) and at
// the other side's row other + 8 n + e % 2.
template <Owner owner>
struct Place {
  int own, other;

  __device__ int own_row(int m, int e) const { return own + 16 * m + e / 2 * 8; }
  __device__ int other_row(int n, int e) const { return other + 8 * n + e % 2; }
  __device__ int row(int m, int n, int e) const { return owner == Owner::Rows ? own_row(m, e) : other_row(n, e); }
  __device__ int column(int m, int n, int e) const { return owner == Owner::Rows ? other_row(n, e) : own_row(m, e); }
};

// What a mask adds to a sum of products. Large finite numbers stay finite: they close a column, and leave a row of
// nothing else uniform.
struct Addition {
  float per_scale;  // 1 / scale

  __device__ explicit Addition(const AttentionShape& n) : per_scale(1.0f / n.scale) {}
  __device__ float operator()(uint8_t open) const { return open ? 0.0f : -INFINITY; }
  template <typename M>
  __device__ float operator()(M value) const {
    const float added = widen(value);
    return added == -INFINITY ? added : fmaxf(added, -1e30f) * per_scale;
  }
};

// Calls visit with the mask from the head's first element on, as what it is made of.
template <typename T, typename Visit>
__device__ void with_mask(const AttentionShape& n, const Head& head, Visit visit) {
  const int64_t start = head.b * n.mask_strides[0] + head.h * n.mask_strides[1];
  if (n.mask_type == Scalar::Bool)
    visit(static_cast<const uint8_t*>(n.mask) + start);
  else if (n.mask_type == Scalar::F32)
    visit(static_cast<const float*>(n.mask) + start);
  else
    visit(static_cast<const T*>(n.mask) + start);
}

// Adds a mask to a tile that lies inside the scores. Where rows are owned, it is read in aligned pairs of columns.
template <typename Tile, Owner owner, typename M>
__device__ void add_inner_mask(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n, const M* mask,
                               const Place<owner>& place) {
  const Addition addition(n);
  const int64_t row_step = n.mask_strides[2];
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (owner == Owner::Rows) {
        const M* at = mask + place.own_row(m, 2 * half) * row_step + place.other;
#pragma unroll
        for (int t = 0; t < Tile::n_tiles; ++t) {
          const Vector<M, 2> pair = load_vector<2>(at + 8 * t);
          sums[m][t][2 * half] += addition(pair.at[0]), sums[m][t][2 * half + 1] += addition(pair.at[1]);
        }
      } else {
        const M* at = mask + place.other * row_step + place.own_row(m, 2 * half);
#pragma unroll
        for (int t = 0; t < Tile::n_tiles; ++t) {
          sums[m][t][2 * half] += addition(at[8 * t * row_step]);
          sums[m][t][2 * half + 1] += addition(at[(8 * t + 1) * row_step]);
        }
      }
    }
}

// Adds a mask whose columns are neighbours, or which is the same for all columns: those are read once.
template <typename Tile, Owner owner, typename M>
__device__ void add_mask(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n, const M* mask,
                         const Place<owner>& place) {
  const Addition addition(n);
  const int64_t row_step = n.mask_strides[2];
  const bool has_columns = n.mask_strides[3] != 0;
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns);
  if constexpr (owner == Owner::Rows) {
    const int left = columns - place.other;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = place.own_row(m, 2 * half);
        const M* at = mask + (row < rows ? row : 0) * row_step;
        const float same = has_columns ? 0.0f : addition(*at);
        at += place.other;
#pragma unroll
        for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            sums[m][t][2 * half + e] += has_columns && 8 * t + e < left ? addition(at[8 * t + e]) : same;
      }
  } else {
    const int left = columns - place.own;
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = place.other_row(t, e);
        const M* at = mask + (row < rows ? row : 0) * row_step;
        const float same = has_columns ? 0.0f : addition(*at);
        at += place.own;
#pragma unroll
        for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            sums[m][t][2 * half + e] +=
                has_columns && 16 * m + 8 * half < left ? addition(at[16 * m + 8 * half]) : same;
      }
  }
}

// Where columns are owned, a mask of columns is read once for each of them.
template <typename Tile, typename M>
__device__ void add_own_columns(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n, const M* mask,
                                const Place<Owner::Columns>& place) {
  const Addition addition(n);
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = place.own_row(m, 2 * half);
      const float added = column < n.columns ? addition(mask[column * n.mask_strides[3]]) : 0.0f;
#pragma unroll
      for (int t = 0; t < Tile::n_tiles; ++t) sums[m][t][2 * half] += added, sums[m][t][2 * half + 1] += added;
    }
}

// Is the mask the same for all rows of a head? Kernels that own rows then keep a tile of it in shared memory.
__device__ inline bool is_mask_of_columns(const AttentionShape& n) { return n.mask && n.mask_strides[2] == 0; }

// Additions of a tile of columns, for one thread each.
template <typename Tile, typename T>
__device__ void load_additions(float* additions, const AttentionShape& n, const Head& head, int first) {
  if (threadIdx.x >= Tile::others) return;
  const int column = first + static_cast<int>(threadIdx.x);
  with_mask<T>(n, head, [&](auto* mask) {
    additions[threadIdx.x] = column < n.columns ? Addition(n)(mask[column * n.mask_strides[3]]) : 0.0f;
  });
}

template <typename Tile>
__device__ void add_additions(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const float* additions) {
  const float* own = additions + threadIdx.x % 4 * 2;
#pragma unroll
  for (int t = 0; t < Tile::n_tiles; ++t) {
    const float2 added = *reinterpret_cast<const float2*>(own + 8 * t);
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m) {
      sums[m][t][0] += added.x, sums[m][t][1] += added.y;
      sums[m][t][2] += added.x, sums[m][t][3] += added.y;
    }
  }
}

// Adds a mask with rows to sums q . k.
template <typename Tile, Owner owner, typename T>
__device__ void add_row_mask(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n, const Head& head,
                             const Place<owner>& place, int first_own, int first_other) {
  const int end_own = first_own + Tile::own, end_other = first_other + Tile::others;
  const bool is_inside =
      owner == Owner::Rows ? end_own <= n.rows && end_other <= n.columns : end_own <= n.columns && end_other <= n.rows;
  with_mask<T>(n, head, [&](auto* mask) {
    const bool has_pairs = reinterpret_cast<uintptr_t>(mask) % (2 * sizeof(*mask)) == 0 && n.mask_strides[2] % 2 == 0;
    if (is_inside && n.mask_strides[3] != 0 && (has_pairs || owner == Owner::Columns))
      add_inner_mask<Tile, owner>(sums, n, mask, place);
    else
      add_mask<Tile, owner>(sums, n, mask, place);
  });
}

// What lies outside, beyond the diagonal or beyond the window becomes -inf, which forbids.
template <typename Tile, Owner owner>
__device__ void close_outside(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n,
                              const Place<owner>& place) {
  const int rows = static_cast<int>(n.rows), columns = static_cast<int>(n.columns);
  const int window = n.window > 0 ? static_cast<int>(n.window) : rows + columns + Tile::own + Tile::others;
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = place.row(m, t, e), column = place.column(m, t, e);
        const bool closed = (n.causal && column > row) || column - row >= window || row - column >= window;
        if (row >= rows || column >= columns || closed) sums[m][t][e] = -INFINITY;
      }
}

// The columns that rows [first, first + count) may meet, or the rows that such columns may: from `first`, at a border
// of tiles, to before `end`.
struct Range {
  int first, end;
};
template <Owner owner>
__device__ Range range_of_others(const AttentionShape& n, int first, int count, int tile) {
  const int others = static_cast<int>(owner == Owner::Rows ? n.columns : n.rows);
  const int window = static_cast<int>(n.window), last = first + count - 1;
  Range range{0, others};
  if (n.causal && owner == Owner::Rows) range.end = min(range.end, last + 1);
  if (n.causal && owner == Owner::Columns) range.first = first;
  if (window > 0) {
    range.first = max(range.first, first - window + 1);
    range.end = min(range.end, last + window);
  }
  range.first = range.first / tile * tile;
  return range;
}

// The others of which every tile inside is open: neither the diagonal nor the window nor the last column closes any of
// it. What would lie beyond the last row is 0 where it is read, and not stored.
template <Owner owner>
__device__ Range open_others(const AttentionShape& n, int first, int count) {
  const int last = first + count - 1, window = static_cast<int>(n.window);
  Range open{0, owner == Owner::Rows ? static_cast<int>(n.columns) : INT_MAX};
  if (n.causal && owner == Owner::Rows) open.end = min(open.end, first + 1);
  if (n.causal && owner == Owner::Columns) open.first = last;
  if (window > 0) {
    open.first = max(open.first, last - window + 1);
    open.end = min(open.end, first + window);
  }
  return open;
}

// Applies the mask to sums q . k, and to what lies outside -inf. `additions` are the columns' where rows are owned and
// the mask is one of columns.
template <typename Tile, Owner owner, typename T>
__device__ void apply_masks(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n, const Head& head,
                            const Place<owner>& place, int first_own, int first_other, const float* additions) {
  if (is_mask_of_columns(n)) {
    if constexpr (owner == Owner::Rows)
      add_additions<Tile>(sums, additions);
    else
      with_mask<T>(n, head, [&](auto* mask) { add_own_columns<Tile>(sums, n, mask, place); });
  } else if (n.mask) {
    add_row_mask<Tile, owner, T>(sums, n, head, place, first_own, first_other);
  }
  const Range open = open_others<owner>(n, first_own, Tile::own);
  const bool is_whole = owner == Owner::Columns || first_own + Tile::own <= n.rows;
  const bool has_rows = owner == Owner::Rows || first_other + Tile::others <= n.rows;
  if (first_other < open.first || first_other + Tile::others > open.end || !is_whole || !has_rows)
    close_outside<Tile, owner>(sums, n, place);
}

// ---- Softmax of rows, a tile of columns after the other ----

// A row's exponents are taken against the largest score so far, or one that was so while none was this much larger:
// what is summed already is then seldom scaled again, and stays far from the largest f16.
inline constexpr float max_growth = 8.0f;

// A warp's rows where rows are owned; scores are sums of products.
template <typename Tile>
struct RowSoftmax {
  float to_log2;
  float largest[Tile::m_tiles][2], sum[Tile::m_tiles][2], rescale[Tile::m_tiles][2];

  __device__ explicit RowSoftmax(float scale) : to_log2(scale * log2_e) {
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) largest[m][half] = -INFINITY, sum[m][half] = 0.0f;
  }

  // Scores become exponentials, and join the sums of rows. True where what the warp has summed with earlier ones must
  // be multiplied by `rescale`.
  __device__ bool add(Sums<Tile::m_tiles, Tile::n_tiles>& scores) {
    const bool grows = grow(scores);
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shift = largest[m][half] == -INFINITY ? 0.0f : largest[m][half] * to_log2;
        float even = 0.0f, odd = 0.0f;  // two chains of additions wait less than one
#pragma unroll
        for (int t = 0; t < Tile::n_tiles; ++t) {
          float* pair = scores[m][t] + 2 * half;
          pair[0] = exp2_approx(pair[0] * to_log2 - shift);
          pair[1] = exp2_approx(pair[1] * to_log2 - shift);
          even += pair[0], odd += pair[1];
        }
        sum[m][half] += even + odd;
      }
    return grows;
  }

  __device__ void rescale_rows(Sums<Tile::m_tiles, Tile::d_tiles>& rows) const {
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int d = 0; d < Tile::d_tiles; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) rows[m][d][e] *= rescale[m][e / 2];
  }

  // After the last tile: sums over the threads of a row, and the lse of rows from `first` on.
  __device__ void finish(const AttentionShape& n, const Head& head, int first, float* lse) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& total = sum[m][half];
        total += __shfl_xor_sync(whole_warp, total, 1);
        total += __shfl_xor_sync(whole_warp, total, 2);
        const int row = first + lane / 4 + 16 * m + 8 * half;
        if (lane % 4 == 0 && row < n.rows)
          lse[head.lse(n, row)] = total > 0.0f ? largest[m][half] * n.scale + logf(total) : -INFINITY;
      }
  }

 private:
  __device__ bool grow(const Sums<Tile::m_tiles, Tile::n_tiles>& scores) {
    float here[Tile::m_tiles][2];
    bool grows = false;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float &row = here[m][half] = -INFINITY, odd = -INFINITY;
#pragma unroll
        for (int t = 0; t < Tile::n_tiles; ++t)
          row = fmaxf(row, scores[m][t][2 * half]), odd = fmaxf(odd, scores[m][t][2 * half + 1]);
        row = fmaxf(row, odd);
        row = fmaxf(row, __shfl_xor_sync(whole_warp, row, 1));
        row = fmaxf(row, __shfl_xor_sync(whole_warp, row, 2));
        grows |= row * to_log2 > largest[m][half] * to_log2 + max_growth;
      }
    if (!__any_sync(whole_warp, grows)) return false;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float next = fmaxf(largest[m][half], here[m][half]);
        rescale[m][half] = next == -INFINITY ? 1.0f : exp2_approx((largest[m][half] - next) * to_log2);
        largest[m][half] = next;
        sum[m][half] *= rescale[m][half];
      }
    return true;
  }
};

// What dropout leaves of weights.
template <typename Tile, typename Bits>
__device__ void drop(Sums<Tile::m_tiles, Tile::n_tiles>& weights, const Bits& bits) {
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) weights[m][t][e] = bits.kept(m, t, e) ? weights[m][t][e] : 0.0f;
}

// ---- Kept bits ----

// The bits of a thread's elements, those of element (m, n, e) at a place known when compiling. Rows beyond the last,
// and words beyond a row's, are all dropped.
template <typename Tile, Owner owner>
struct TileBits;

template <typename Tile>
struct TileBits<Tile, Owner::Rows> {
  static constexpr int count = (Tile::others + 31) / 32;
  uint32_t words[Tile::m_tiles][2][count];

  __device__ void load(const AttentionShape& n, const uint32_t* head, const Place<Owner::Rows>& place) {
    const int pitch = static_cast<int>(kept_words(n.columns)), first = place.other / 32;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < count; ++i) {
          const int row = place.own_row(m, 2 * half);
          const bool inside = row < n.rows && first + i < pitch;
          words[m][half][i] = inside ? head[int64_t{row} * pitch + first + i] >> place.other % 32 : 0;
        }
  }
  __device__ bool kept(int m, int n, int e) const { return words[m][e / 2][8 * n / 32] >> (8 * n % 32 + e % 2) & 1; }
};

// Where columns are owned a warp's lie in one word of each row; the words of a tile's rows pass by shared memory.
template <typename Tile>
struct TileBits<Tile, Owner::Columns> {
  static constexpr int shared_words = Tile::warps * Tile::others;
  uint32_t words[Tile::n_tiles][2];

  __device__ static void load(uint32_t* shared, const AttentionShape& n, const uint32_t* head, int first_own,
                              int first_other) {
    const int pitch = static_cast<int>(kept_words(n.columns));
    for (int i = static_cast<int>(threadIdx.x); i < shared_words; i += Tile::threads) {
      const int row = first_other + i % Tile::others, word = (first_own + i / Tile::others * Tile::warp_rows) / 32;
      const bool inside = row < n.rows && word < pitch;
      copy_word_async(shared + i, head + (inside ? int64_t{row} * pitch + word : 0), inside);
    }
  }
  __device__ void read(const uint32_t* shared, const Place<Owner::Columns>& place) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t* own = shared + static_cast<int>(threadIdx.x) / 32 * Tile::others + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t) {
      const uint2 pair = *reinterpret_cast<const uint2*>(own + 8 * t);
      words[t][0] = pair.x >> place.own % 32;
      words[t][1] = pair.y >> place.own % 32;
    }
  }
  __device__ bool kept(int m, int n, int e) const { return words[n][e % 2] >> (16 * m + e / 2 * 8) & 1; }
};

// The bits of head h of sample b. A group's heads lie one after the other.
__device__ inline const uint32_t* head_bits(const AttentionShape& n, const MmaCall& call, const Head& head) {
  const int64_t number = head.b * n.heads + head.h - call.first_group * (n.heads / n.kv_heads);
  return call.kept.words + number * n.rows * kept_words(n.columns);
}

// Writes the bits of all rows of `groups` groups from `first_group` on.
[[nodiscard]] cudaError_t draw_kept_bits(const AttentionShape& shape, const MmaCall& call, cudaStream_t stream);

// Calls launch(MmaCall) for each piece of the groups, their bits drawn.
template <typename Launch>
cudaError_t for_groups(const AttentionShape& shape, const KeptBits& kept, bool aligned, cudaStream_t stream,
                       Launch launch) {
  const int64_t groups = shape.batch * shape.kv_heads, step = shape.dropout > 0 ? kept.groups : groups;
  for (int64_t first = 0; first < groups; first += step) {
    const MmaCall call{kept, first, first + step < groups ? step : groups - first, aligned};
    if (shape.dropout > 0)
      if (cudaError_t error = draw_kept_bits(shape, call, stream); error != cudaSuccess) return error;
    if (cudaError_t error = launch(call); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

inline bool is_aligned(const void* pointer, int64_t step) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && step % 8 == 0;
}

// Calls visit with a null pointer of the 16-bit float type.
template <typename Visit>
cudaError_t with_16_bit_float(Scalar type, Visit visit) {
  switch (type) {
    case Scalar::BF16: return visit(static_cast<bf16*>(nullptr));
    case Scalar::F16: return visit(static_cast<f16*>(nullptr));
    default: return cudaErrorInvalidValue;
  }
}

template <typename Kernel, typename... Args>
cudaError_t launch_mma(Kernel kernel, int64_t blocks, int threads, int bytes, cudaStream_t stream, Args... args) {
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(blocks), threads, static_cast<size_t>(bytes), stream>>>(args...);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
