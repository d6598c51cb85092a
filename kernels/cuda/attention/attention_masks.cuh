#pragma once

// What masks, the diagonal, the window and the borders do to a tile of scores on the matrix units. Scores are sums of
// products here: times scale they are scores.

#include "kernels/cuda/attention/attention_ranges.cuh"

namespace plimsoll::cuda {

// What a mask adds to a sum of products. Large finite numbers stay finite: they close a column, and leave a row of
// nothing else uniform.
struct Addition {
  float per_scale;  // 1 / scale

  __device__ explicit Addition(float scale) : per_scale(1.0f / scale) {}
  __device__ explicit Addition(const AttentionShape& n) : Addition(n.scale) {}
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

// The same value, which the compiler does not know to be so: what is made from it in a branch that most calls do not
// take is then made there, and holds no registers in every tile.
__device__ inline float made_here(float value) {
  asm volatile("" : "+f"(value));
  return value;
}
__device__ inline int made_here(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ inline int64_t made_here(int64_t value) {
  asm volatile("" : "+l"(value));
  return value;
}
template <typename T>
__device__ const T* made_here(const T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}
template <Owner owner>
__device__ Place<owner> made_here(Place<owner> place) {
  asm volatile("" : "+r"(place.own), "+r"(place.other));
  return place;
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

// What each step between a row and a column takes off a sum of products.
__device__ inline float slope_of(const AttentionShape& n, const Head& head) {
  return n.slopes[made_here(head.h)] / n.scale;
}

// What a mask of columns adds to the columns that a thread owns.
template <typename Tile>
struct OwnAdditions {
  float at[Tile::m_tiles][2];

  template <typename T>
  __device__ void load(const AttentionShape& n, const Head& head, const Place<Owner::Columns>& place) {
    with_mask<T>(n, head, [&](auto* mask) {
#pragma unroll
      for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = place.own_row(m, 2 * half);
          at[m][half] = column < n.columns ? Addition(n)(mask[column * n.mask_strides[3]]) : 0.0f;
        }
    });
  }
  // The same with slopes, where `at` is 0 before. Up to the diagonal the distance of row r and column c is r - c: the
  // column adds its part of it, and the row's part is in its lse.
  template <typename T>
  __device__ void load_with_slopes(const AttentionShape& n, const Head& head, const Place<Owner::Columns>& place) {
    if (is_mask_of_columns(n)) load<T>(n, head, place);
    if (!n.slopes) return;
    const float slope = slope_of(n, head);
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) at[m][half] += slope * static_cast<float>(place.own_row(m, 2 * half));
  }
  __device__ void add_to(Sums<Tile::m_tiles, Tile::n_tiles>& sums) const {
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[m][t][e] += at[m][e / 2];
  }
};

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
  const Place<owner> place = made_here(of_tile);
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

// Closes the pairs of a tile whose row and column have different segments.
template <typename Tile, Owner owner>
__device__ void close_other_segments(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n,
                                     const Head& head, const Place<owner>& of_tile, int first_own, int first_other) {
  const Head opaque{made_here(head.b), head.h};
  const SegmentTile own = segment_tiles(n, opaque)[first_own / segment_tile],
                    other = segment_tiles(n, opaque)[first_other / segment_tile];
  const bool is_one_own = own.low == own.high && first_own % segment_tile + Tile::own <= segment_tile;
  if (is_one_own && own.low == other.low && own.low == other.high) return;
  const Place<owner> place = made_here(of_tile);
  const int64_t* const segments = opaque.segments(n);
  const int last = static_cast<int>(n.columns) - 1;
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t mine = segments[min(place.own_row(m, 2 * half), last)];
#pragma unroll
      for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (segments[min(place.other_row(t, e), last)] != mine) sums[m][t][2 * half + e] = -INFINITY;
    }
}

// ---- Distances, and capped scores ----

// How far element (m, t, e) lies from its row, or its column, times -1 or not.
template <Owner owner>
__device__ float distance_of(const Place<owner>& place, int m, int t, int e) {
  return static_cast<float>(place.other - place.own) + static_cast<float>(8 * t + e % 2 - 16 * m - e / 2 * 8);
}

template <typename Tile, Owner owner>
__device__ void subtract_distances(Sums<Tile::m_tiles, Tile::n_tiles>& sums, float slope, const Place<owner>& of_tile) {
  const Place<owner> place = made_here(of_tile);
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[m][t][e] -= slope * fabsf(distance_of(place, m, t, e));
}

// Caps sums of products: those of a score s and of softcap * tanh(s / softcap).
struct Cap {
  float to_tangent, to_sum;

  __device__ explicit Cap(const AttentionShape& n) {
    const float softcap = made_here(n.softcap);
    to_tangent = __fdividef(n.scale, softcap);
    to_sum = __fdividef(softcap, n.scale);
  }
  __device__ float tangent(float sum) const { return tanh_approx(sum * to_tangent); }
  // What is closed already stays so.
  __device__ float operator()(float sum, float tangent) const { return sum == -INFINITY ? sum : tangent * to_sum; }
};

template <typename Tile>
__device__ void cap_sums(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n) {
  const Cap cap(n);
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[m][t][e] = cap.tangent(sums[m][t][e]) * cap.to_sum;
}

// Applies the masks to sums q . k, capped or not, and to what lies outside -inf. `additions` are the columns' where
// rows are owned and the mask is one of columns.
template <typename Tile, Owner owner, typename T>
__device__ void apply_masks(Sums<Tile::m_tiles, Tile::n_tiles>& sums, const AttentionShape& n, const Head& head,
                            const Place<owner>& place, int first_own, int first_other, const float* additions) {
  if (is_mask_of_columns(n)) {
    if constexpr (owner == Owner::Rows) {
      static_assert(column_tile % Tile::others == 0);
      if (noted_tile(n, tiles_of_mask(n, head), first_other) != ColumnTile::Open) add_additions<Tile>(sums, additions);
    } else {
      OwnAdditions<Tile> own;
      own.template load<T>(n, head, place);
      own.add_to(sums);
    }
  }
  if (n.slopes) subtract_distances<Tile, owner>(sums, slope_of(n, head), place);
  if (n.mask && !is_mask_of_columns(n)) add_row_mask<Tile, owner, T>(sums, n, head, place, first_own, first_other);
  if (n.segments) close_other_segments<Tile, owner>(sums, n, head, place, first_own, first_other);
  const Range open = open_others<owner>(n, first_own, Tile::own);
  const bool is_whole = owner == Owner::Columns || first_own + Tile::own <= n.rows;
  const bool has_rows = owner == Owner::Rows || first_other + Tile::others <= n.rows;
  if (first_other < open.first || first_other + Tile::others > open.end || !is_whole || !has_rows)
    close_outside<Tile, owner>(sums, n, place);
}

}  // namespace plimsoll::cuda
