#pragma once

// What masks, the diagonal, the window and the borders do to a tile of scores on the matrix units, and which tiles of
// the other side a tile meets at all. Scores are sums of products here: times scale they are scores.

#include "kernels/cuda/attention/attention_mma.cuh"

#include <climits>

namespace plimsoll::cuda {

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
                             const Place<owner>& of_tile, int first_own, int first_other) {
  const int end_own = first_own + Tile::own, end_other = first_other + Tile::others;
  // Addresses are made here, not in every tile of a call without a mask.
  Place<owner> place = of_tile;
  asm volatile("" : "+r"(place.own), "+r"(place.other));
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

}  // namespace plimsoll::cuda
