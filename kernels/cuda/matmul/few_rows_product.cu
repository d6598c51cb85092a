#include "kernels/cuda/matmul/few_rows_product.h"

#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/division.h"

// A warp has a large matrix, or a part of it, and the few rows that belong to it. Of 16 numbers of a row a thread loads
// or stores four that lie side by side; products take them in an order of their own, which both of their operands have,
// or their columns have. Where sums go along columns in memory, 8 x 8 matrices are turned in registers.

namespace plimsoll::cuda {
namespace {

// Four numbers of row g of 8, thread 4 g + t the ones from 4 t on; zeros below the last row.
template <typename T>
__device__ uint2 four_of_row(const T* rows, int count, int length, int row, int column) {
  return row < count ? *reinterpret_cast<const uint2*>(rows + int64_t{row} * length + column) : make_uint2(0, 0);
}

__device__ inline uint32_t turned_matrix(uint32_t rows) {
  uint32_t columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}

template <typename T>
__device__ void store_four(T* to, const float (&sums)[2][4], int first) {
  *reinterpret_cast<uint2*>(to) = make_uint2(packed_pair<T>(sums[0][first], sums[0][first + 1]),
                                             packed_pair<T>(sums[1][first], sums[1][first + 1]));
}

// Column c of product `half` is number 4 (c / 2) + 2 half + c % 2 of 16.
__device__ inline int number_of_column(int c, int half) { return c / 2 * 4 + half * 2 + c % 2; }

// Rows or columns of the large matrix that a warp has.
struct WarpTiles {
  int first, end;

  __device__ explicit WarpTiles(int length)
      : first(length / FewRows::tile * static_cast<int>(blockIdx.y) / static_cast<int>(gridDim.y) * FewRows::tile),
        end(length / FewRows::tile * (static_cast<int>(blockIdx.y) + 1) / static_cast<int>(gridDim.y) * FewRows::tile) {
  }
};

// y[few, down] = a[few, across] b[down, across]^T, 16 columns at a time.
template <bool one_step, typename T>
__device__ void turned_product(T* y, const T* a, const T* b, const FewRows& f, int g, int t) {
  const WarpTiles mine(f.down);
#pragma unroll one_step ? 4 : 1
  for (int first = mine.first; first < mine.end; first += FewRows::tile) {
    float sums[2][4] = {};
#pragma unroll one_step ? 1 : 2
    for (int inner = 4 * t; inner < (one_step ? FewRows::tile : f.across); inner += FewRows::tile) {
      const uint2 upper = four_of_row(a, f.few, f.across, g, inner),
                  lower = four_of_row(a, f.few, f.across, g + 8, inner);
      const LeftFragment rows{{upper.x, lower.x, upper.y, lower.y}};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 column =
            __ldcs(reinterpret_cast<const uint2*>(b + int64_t{first + number_of_column(g, half)} * f.across + inner));
        multiply_add<T>(sums[half], rows, RightFragments{{column.x, column.y}}, 0);
      }
    }
#pragma unroll
    for (int lower = 0; lower < 2; ++lower)
      if (g + 8 * lower < f.few) store_four(y + int64_t{g + 8 * lower} * f.down + first + 4 * t, sums, 2 * lower);
  }
}

// y[few, across] = a[few, down] b[down, across], 16 columns at a time.
template <typename T>
__device__ void plain_product(T* y, const T* a, const T* b, const FewRows& f, int g, int t) {
  const WarpTiles mine(f.across);
  for (int first = mine.first; first < mine.end; first += FewRows::tile) {
    float sums[2][4] = {};
#pragma unroll 2
    for (int inner = 0; inner < f.down; inner += FewRows::tile) {
      LeftFragment rows;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = g + i % 2 * 8;
        rows.at[i] =
            row < f.few ? *reinterpret_cast<const uint32_t*>(a + int64_t{row} * f.down + inner + i / 2 * 8 + 2 * t) : 0;
      }
      uint2 b_rows[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        b_rows[i] = __ldcs(reinterpret_cast<const uint2*>(b + int64_t{inner + 8 * i + g} * f.across + first + 4 * t));
      const RightFragments columns{{turned_matrix(b_rows[0].x), turned_matrix(b_rows[1].x), turned_matrix(b_rows[0].y),
                                    turned_matrix(b_rows[1].y)}};
#pragma unroll
      for (int half = 0; half < 2; ++half) multiply_add<T>(sums[half], rows, columns, half);
    }
#pragma unroll
    for (int lower = 0; lower < 2; ++lower)
      if (g + 8 * lower < f.few) store_four(y + int64_t{g + 8 * lower} * f.across + first + 4 * t, sums, 2 * lower);
  }
}

// y[down, across] = a[few, down]^T b[few, across], 16 rows by 16 columns at a time.
template <typename T>
__device__ void outer_product(T* y, const T* a, const T* b, const FewRows& f, int g, int t) {
  const WarpTiles mine(f.down);
  for (int first = 0; first < f.across; first += FewRows::tile) {
    const uint2 upper = four_of_row(b, f.few, f.across, g, first + 4 * t),
                lower = four_of_row(b, f.few, f.across, g + 8, first + 4 * t);
    const RightFragments columns{
        {turned_matrix(upper.x), turned_matrix(lower.x), turned_matrix(upper.y), turned_matrix(lower.y)}};
#pragma unroll 4
    for (int row = mine.first; row < mine.end; row += FewRows::tile) {
      const uint2 a_upper = four_of_row(a, f.few, f.down, g, row + 4 * t),
                  a_lower = four_of_row(a, f.few, f.down, g + 8, row + 4 * t);
      const LeftFragment rows{
          {turned_matrix(a_upper.x), turned_matrix(a_upper.y), turned_matrix(a_lower.x), turned_matrix(a_lower.y)}};
      float sums[2][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) multiply_add<T>(sums[half], rows, columns, half);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_four(y + int64_t{row + number_of_column(g, half)} * f.across + first + 4 * t, sums, 2 * half);
    }
  }
}

template <typename T, FewRowsForm form>
__global__ void __launch_bounds__(FewRows::threads, 3)
    few_rows_product_kernel(T* __restrict__ y, const T* __restrict__ a, const T* __restrict__ b, const FewRows f) {
  const int64_t matrix = (int64_t{blockIdx.x} * FewRows::threads + threadIdx.x) / warp_threads;
  if (matrix >= f.batch) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, g = lane / 4, t = lane % 4;
  const int64_t large = matrix * f.down * f.across, with_down = matrix * f.few * f.down,
                with_across = matrix * f.few * f.across;
  if constexpr (form == FewRowsForm::Turned) {
    if (f.across == FewRows::tile)
      turned_product<true>(y + with_down, a + with_across, b + large, f, g, t);
    else
      turned_product<false>(y + with_down, a + with_across, b + large, f, g, t);
  } else if constexpr (form == FewRowsForm::Plain) {
    plain_product(y + with_across, a + with_down, b + large, f, g, t);
  } else {
    outer_product(y + large, a + with_down, b + with_across, f, g, t);
  }
}

template <typename T>
cudaError_t run(void* y, const void* a, const void* b, const FewRows& f, cudaStream_t stream) {
  const auto kernel = f.form == FewRowsForm::Turned  ? few_rows_product_kernel<T, FewRowsForm::Turned>
                      : f.form == FewRowsForm::Plain ? few_rows_product_kernel<T, FewRowsForm::Plain>
                                                     : few_rows_product_kernel<T, FewRowsForm::Outer>;
  const dim3 blocks(static_cast<unsigned>(divide_up(f.batch, FewRows::threads / warp_threads)),
                    static_cast<unsigned>(f.parts()));
  kernel<<<blocks, FewRows::threads, 0, stream>>>(static_cast<T*>(y), static_cast<const T*>(a),
                                                  static_cast<const T*>(b), f);
  return cudaGetLastError();
}

}  // namespace

cudaError_t few_rows_product(Scalar type, void* y, const void* a, const void* b, const FewRows& sizes,
                             cudaStream_t stream) {
  return type == Scalar::BF16 ? run<bf16>(y, a, b, sizes, stream) : run<f16>(y, a, b, sizes, stream);
}

}  // namespace plimsoll::cuda
