#include "kernels/cuda/elementwise/f8_codes.cuh"
#include "kernels/cuda/elementwise/scaled_f8.h"

// Serves to_scaled_f8 by blocks and tiles: a block of threads has 128 rows of 128 numbers, and reads them once for the
// codes and scales of both layouts.

namespace plimsoll::cuda {
namespace {

constexpr int block_side = 128;
using Square = TurnedTile<block_side>;

// The largest in each half of a warp.
__device__ uint32_t largest_of_half(uint32_t size) {
#pragma unroll
  for (int distance = 1; distance < warp_threads / 2; distance *= 2)
    size = max(size, __shfl_xor_sync(whole_warp, size, distance));
  return size;
}

// Where the rows of tiles' scales begin.
__host__ __device__ inline int64_t tiles_in_row(int64_t columns) { return (columns / block_side + 3) / 4 * 4; }

// The scale of one tile, and behind the last one of a row ones.
__device__ void store_tile_scale(float* scales, int64_t row_block, int64_t column_block, int64_t columns, float scale) {
  const int64_t length = tiles_in_row(columns);
  scales[row_block * length + column_block] = scale;
  if (column_block + 1 == columns / block_side)
    for (int64_t i = column_block + 1; i < length; ++i) scales[row_block * length + i] = 1.0f;
}

// Two blocks share a multiprocessor where their numbers and the scales of rows and columns fit into its registers.
template <typename T, bool is_tile>
constexpr int blocks_at_once = is_tile || sizeof(T) == 2 ? 2 : 1;

// A block has 128 rows of 128 numbers. Sixteen neighbouring threads have the numbers of a row.
template <typename T, __nv_fp8_interpretation_t format, bool is_tile>
__global__ void __launch_bounds__(Square::threads, (blocks_at_once<T, is_tile>))
    squares_kernel(const T* __restrict__ x, int64_t rows, int64_t columns, uint8_t* __restrict__ codes,
                   uint8_t* __restrict__ turned, float* __restrict__ scales, float* __restrict__ turned_scales) {
  __shared__ Square square;
  __shared__ uint32_t column_sizes[block_side];
  const int64_t row_block = blockIdx.x / (columns / block_side), column_block = blockIdx.x % (columns / block_side);
  const int64_t row = row_block * block_side + Square::own_row(),
                column = column_block * block_side + Square::own_column();
  Eight<T> numbers[thread_rows];
#pragma unroll
  for (int r = 0; r < thread_rows; ++r) numbers[r].load(x + (row + r) * columns + column);

  float row_factors[thread_rows], column_factors[8];
  EightSizes<T> of_columns;
#pragma unroll
  for (int r = 0; r < thread_rows; ++r) of_columns.take(numbers[r]);
  if constexpr (is_tile) {
    const float scale = scale_of_size<format>(block_reduce(of_columns.largest(), LargestWord{}, 0u));
#pragma unroll
    for (float& factor : row_factors) factor = __frcp_rn(scale);
    if (threadIdx.x == 0 && codes) store_tile_scale(scales, row_block, column_block, columns, scale);
    if (threadIdx.x == 0 && turned) store_tile_scale(turned_scales, column_block, row_block, rows, scale);
  } else {
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) {
      EightSizes<T> of_row;
      of_row.take(numbers[r]);
      const float scale = scale_of_size<format>(largest_of_half(of_row.largest()));
      row_factors[r] = __frcp_rn(scale);
      if (codes && Square::own_column() == 0) scales[column_block * rows + row + r] = scale;
    }
    if (turned) {
      if (threadIdx.x < block_side) column_sizes[threadIdx.x] = 0;
      __syncthreads();
#pragma unroll
      for (int c = 0; c < 8; ++c) atomicMax(&column_sizes[Square::own_column() + c], of_columns[c]);
      __syncthreads();
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float scale = scale_of_size<format>(column_sizes[Square::own_column() + c]);
        column_factors[c] = __frcp_rn(scale);
        if (Square::own_row() == 0) turned_scales[row_block * columns + column + c] = scale;
      }
    }
  }

  uint2 made[thread_rows];
#pragma unroll
  for (int r = 0; r < thread_rows; ++r) {
    made[r] = numbers[r].template codes<format>(row_factors[r]);
    if (codes) __stwb(reinterpret_cast<uint2*>(codes + (row + r) * columns + column), made[r]);
  }
  if (!turned) return;
  if constexpr (!is_tile)
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) made[r] = numbers[r].template codes<format>(column_factors);
  square.put(made);
  __syncthreads();
  square.store(turned, rows, columns, row_block * block_side, column_block * block_side);
}

template <bool is_tile>
cudaError_t launch_squares(const ScaledF8& call, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(call.rows / block_side * (call.columns / block_side));
  if (blocks == 0) return cudaSuccess;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    const auto* x = static_cast<const T*>(call.x);
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, Square::threads, 0, stream>>>(x, call.rows, call.columns, call.codes, call.turned, call.scales,
                                                     call.turned_scales);
    };
    call.type == Scalar::F8E4M3 ? launch(squares_kernel<T, __NV_E4M3, is_tile>)
                                : launch(squares_kernel<T, __NV_E5M2, is_tile>);
  });
}

}  // namespace

cudaError_t blocks_to_f8(const ScaledF8& call, cudaStream_t stream) { return launch_squares<false>(call, stream); }

cudaError_t tiles_to_f8(const ScaledF8& call, cudaStream_t stream) { return launch_squares<true>(call, stream); }

}  // namespace plimsoll::cuda
