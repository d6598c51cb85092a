#pragma once

// What attention of few rows (few_rows_sizes.h) and its gradient share: a block has one head, whose tensors lie whole
// in shared memory. Four warps make the scores, sixteen rows each; all warps then make results, sixteen elements of all
// rows at a time.

#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/attention/few_rows_sizes.h"
#include "kernels/cuda/common/packed.cuh"

namespace plimsoll::cuda {

inline constexpr int few_rows_tiles = max_few_rows / 16;
inline constexpr int few_warps = 8, few_columns_of_warp = 32;
using FewScores = float[few_columns_of_warp / 8][4];  // a warp's

// Where a thread's scores are: element e of tile t.
struct FewPlace {
  int first_row, first_column, row, column;

  __device__ FewPlace() {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    first_row = warp % few_rows_tiles * 16;
    first_column = warp / few_rows_tiles * few_columns_of_warp;
    row = first_row + lane / 4;
    column = first_column + lane % 4 * 2;
  }
  __device__ int half() const { return first_column / few_columns_of_warp; }
  __device__ int row_of(int e) const { return row + e / 2 * 8; }
  __device__ int column_of(int t, int e) const { return column + 8 * t + e % 2; }
};

// Copies 8 bytes from global to shared memory, or writes zeros where `inside` is false.
__device__ inline void copy_pair_async(void* to, const void* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 8 : 0)
               : "memory");
}

// Starts copying rows of a head beside computing; what lies outside becomes 0. `width` elements of a row are aligned:
// 8 or 4, or 1, of which a thread has those of a row under way together.
template <int width, typename T>
__device__ void copy_few_rows(T* to, const T* head, int64_t step, int64_t rows, int all_rows, int64_t depth,
                              const FewRows& n) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int row = warp; row < all_rows; row += few_warps) {
    const T* const from = head + row * step;
    T* const to_row = to + row * n.pitch;
    const int inside = row < rows ? static_cast<int>(depth) : 0;
    if constexpr (width > 1) {
#pragma unroll 1
      for (int d = width * lane; d < n.depth; d += 32 * width) {
        if constexpr (width == 8)
          copy_async(to_row + d, d < inside ? from + d : head, d < inside);
        else
          copy_pair_async(to_row + d, d < inside ? from + d : head, d < inside);
      }
    } else {
      T elements[max_few_rows_depth / 32];
#pragma unroll
      for (int i = 0; i < max_few_rows_depth / 32; ++i)
        elements[i] = lane + 32 * i < inside ? from[lane + 32 * i] : narrow<T>(0.0f);
#pragma unroll
      for (int i = 0; i < max_few_rows_depth / 32; ++i)
        if (lane + 32 * i < n.depth) to_row[lane + 32 * i] = elements[i];
    }
  }
}

template <int width, typename T>
__device__ void store_few_rows(T* head, int64_t step, int64_t rows, int64_t depth, const T* from, const FewRows& n) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int row = warp; row < rows; row += few_warps)
#pragma unroll 1
    for (int d = width * lane; d < depth; d += 32 * width)
      store_packed(head + row * step + d, load_packed<width>(from + row * n.pitch + d));
}

// scores = rows * columns^T, of the warp's place.
template <typename T>
__device__ void multiply_few_rows(FewScores& scores, const T* rows, const T* columns, const FewPlace& place,
                                  const FewRows& n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* const left_row = rows + (place.first_row + lane % 16) * n.pitch + lane / 16 * 8;
  const T* const right_row = columns + (place.first_column + lane % 8 + lane / 16 * 8) * n.pitch + lane / 8 % 2 * 8;
#pragma unroll
  for (float(&tile)[4] : scores)
#pragma unroll
    for (float& sum : tile) sum = 0.0f;
#pragma unroll 1
  for (int d = 0; d < n.depth; d += 16) {
    LeftFragment left;
    load_matrices(left.at, left_row + d);
#pragma unroll
    for (int tile = 0; tile < few_columns_of_warp / 16; ++tile) {
      if (place.first_column + 16 * tile >= n.columns) break;
      RightFragments right;
      load_matrices(right.at, right_row + 16 * tile * n.pitch + d);
      multiply_add<T>(scores[2 * tile], left, right, 0);
      multiply_add<T>(scores[2 * tile + 1], left, right, 1);
    }
  }
}

// Writes the warp's weights, rounded to T.
template <typename T>
__device__ void store_weights(T* weights, const FewScores& of_warp, const FewPlace& place) {
  T* const at = weights + place.row * FewRows::weights_pitch + place.column;
#pragma unroll
  for (int tile = 0; tile < few_columns_of_warp / 8; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<uint32_t*>(at + 8 * half * FewRows::weights_pitch + 8 * tile) =
          packed_pair<T>(of_warp[tile][2 * half], of_warp[tile][2 * half + 1]);
}

enum class Weighs { Columns, Rows };  // results of rows from columns, or of columns from rows

// to[i, d] = by * sum over j of weights[i, j] * other[j, d], or of weights[j, i]. A warp takes every eighth sixteen
// elements d: it may read these elements of `other` and write those of `to` while other warps are elsewhere.
template <Weighs weighs, typename T>
__device__ void weigh_few_rows(T* to, const T* weights, const T* other, float by, const FewRows& n) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int own_tiles = (weighs == Weighs::Columns ? n.rows : n.columns) / 16;
  const int other_tiles = (weighs == Weighs::Columns ? n.columns : n.rows) / 16;
  LeftFragment left[few_rows_tiles][few_rows_tiles];  // of own rows, by others
#pragma unroll
  for (int i = 0; i < few_rows_tiles; ++i)
#pragma unroll
    for (int j = 0; j < few_rows_tiles; ++j) {
      if (i >= own_tiles || j >= other_tiles) break;
      if constexpr (weighs == Weighs::Columns)
        load_matrices(left[i][j].at, weights + (16 * i + lane % 16) * FewRows::weights_pitch + 16 * j + lane / 16 * 8);
      else
        load_matrices_transposed(left[i][j].at, weights + (16 * j + lane % 8 + lane / 16 * 8) * FewRows::weights_pitch +
                                                    16 * i + lane / 8 % 2 * 8);
    }
  __syncwarp();  // what `to` had is read
#pragma unroll 1
  for (int d = 16 * warp; d < n.depth; d += 16 * few_warps) {
    float sums[few_rows_tiles][2][4] = {};
    const T* const right_row = other + lane % 16 * n.pitch + lane / 16 * 8 + d;
#pragma unroll
    for (int j = 0; j < few_rows_tiles; ++j) {
      if (j >= other_tiles) break;
      RightFragments right;
      load_matrices_transposed(right.at, right_row + 16 * j * n.pitch);
#pragma unroll
      for (int i = 0; i < few_rows_tiles; ++i) {
        if (i >= own_tiles) break;
        multiply_add<T>(sums[i][0], left[i][j], right, 0);
        multiply_add<T>(sums[i][1], left[i][j], right, 1);
      }
    }
#pragma unroll
    for (int i = 0; i < few_rows_tiles; ++i) {
      if (i >= own_tiles) break;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<uint32_t*>(to + (16 * i + 8 * half + lane / 4) * n.pitch + d + 8 * tile + lane % 4 * 2) =
              packed_pair<T>(sums[i][tile][2 * half] * by, sums[i][tile][2 * half + 1] * by);
    }
  }
}

// Columns from here on are closed for a row, by the tensor's end or by causal attention.
__device__ inline int open_columns(const AttentionShape& n, int row) {
  const int columns = static_cast<int>(n.columns);
  if (row >= n.rows) return 0;
  return n.causal && row < columns ? row + 1 : columns;
}

// Weights that dropout drops become 0. A row's word has the warp's columns.
__device__ inline void drop_few(FewScores& weights, const AttentionShape& n, const Head& head, const FewPlace& place) {
  const KeptDraws draws(n, head);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = place.row + 8 * half;
    const uint32_t word = row < n.rows && place.first_column < n.columns ? draws(row, place.half()) : 0;
#pragma unroll
    for (int t = 0; t < few_columns_of_warp / 8; ++t)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e)
        if ((word >> (place.column_of(t, e) % 32) & 1) == 0) weights[t][e] = 0.0f;
  }
}

// The sum or the largest of a row's threads.
__device__ inline float sum_of_quad(float value) {
  value += __shfl_xor_sync(whole_warp, value, 1);
  return value + __shfl_xor_sync(whole_warp, value, 2);
}
__device__ inline float largest_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(whole_warp, value, 1));
  return fmaxf(value, __shfl_xor_sync(whole_warp, value, 2));
}

// How many elements of all rows lie at the borders of words: 8, 4 or 1.
class FewRowsWidth {
 public:
  explicit FewRowsWidth(int64_t depth) { divide(depth); }

  void add(const void* tensor, int64_t step) {
    divide(step);
    divide(static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor) / 2));
  }
  // Calls visit with it as a constant.
  template <typename Visit>
  cudaError_t as_constant(Visit visit) const {
    if (elements_ == 8) return visit(std::integral_constant<int, 8>());
    if (elements_ == 4) return visit(std::integral_constant<int, 4>());
    return visit(std::integral_constant<int, 1>());
  }

 private:
  void divide(int64_t count) {
    while (count % elements_ != 0) elements_ /= 2;
  }

  int64_t elements_ = 8;
};

// Has scores besides scaled products, or closed ones besides causal attention?
[[nodiscard]] inline bool has_forms(const AttentionShape& n) {
  return n.window > 0 || n.segments || n.softcap > 0.0f || n.slopes || n.mask;
}

}  // namespace plimsoll::cuda
