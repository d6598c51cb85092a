#include "kernels/cuda/elementwise/f8_codes.cuh"
#include "kernels/cuda/elementwise/scaled_f8.h"
#include "kernels/division.h"

#include <algorithm>

// Serves to_scaled_f8 by rows. A block has a row in registers, so that it reads each number once, and keeps the largest
// sizes of columns beside; codes of the transpose take a second reading, since the scale of a column is known when all
// rows have been read.

namespace plimsoll::cuda {
namespace {

// Few atomics are left once some rows have been seen.
__device__ void raise(uint32_t* size, uint32_t bits) {
  if (bits > __ldcg(size)) atomicMax(size, bits);
}

// Columns that a block of 256 threads has in registers, eight times `eights` a thread.
constexpr int64_t max_row = int64_t{8} * 8 * block_threads;

// Rows one after the other, each read once.
template <typename T, __nv_fp8_interpretation_t format, int eights, bool with_columns>
__global__ void __launch_bounds__(block_threads)
    rows_kernel(const T* __restrict__ x, int64_t rows, int64_t columns, int64_t rows_per_block,
                uint8_t* __restrict__ codes, float* __restrict__ scales, uint32_t* __restrict__ column_sizes) {
  const int64_t begin = int64_t{blockIdx.x} * rows_per_block, end = min(begin + rows_per_block, rows);
  const auto column_of = [&](int i) {
    return static_cast<int64_t>(i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
  };
  EightSizes<T> of_columns[with_columns ? eights : 1];
  for (int64_t row = begin; row < end; ++row) {
    Eight<T> own[eights];
#pragma unroll
    for (int i = 0; i < eights; ++i)
      if (column_of(i) < columns) own[i].load(x + row * columns + column_of(i));
    EightSizes<T> sizes;
#pragma unroll
    for (int i = 0; i < eights; ++i) {
      if (column_of(i) >= columns) continue;
      sizes.take(own[i]);
      if constexpr (with_columns) of_columns[i].take(own[i]);
    }
    const float scale = scale_of_size<format>(block_reduce(sizes.largest(), LargestWord{}, 0u));
    const float factor = __frcp_rn(scale);
    if (threadIdx.x == 0) scales[row] = scale;
#pragma unroll
    for (int i = 0; i < eights; ++i)
      if (column_of(i) < columns)
        __stwb(reinterpret_cast<uint2*>(codes + row * columns + column_of(i)), own[i].template codes<format>(factor));
  }
  if constexpr (with_columns) {
    // By way of shared memory, so that neighbours have neighbouring columns.
    __shared__ uint32_t words[8 * block_threads];
    const int threads = static_cast<int>(blockDim.x), own = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < eights; ++i) {
      __syncthreads();
#pragma unroll
      for (int c = 0; c < 8; ++c) words[own * 8 + c] = of_columns[i][c];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int64_t column = int64_t{i} * 8 * threads + k * threads + own;
        if (column < columns) raise(column_sizes + column, words[k * threads + own]);
      }
    }
  }
}

// A row of any length, read twice.
template <typename T, __nv_fp8_interpretation_t format>
__global__ void __launch_bounds__(block_threads)
    long_rows_kernel(const T* __restrict__ x, int64_t columns, uint8_t* __restrict__ codes,
                     float* __restrict__ scales) {
  constexpr int64_t step = int64_t{8} * block_threads;
  const T* row = x + int64_t{blockIdx.x} * columns;
  EightSizes<T> sizes;
#pragma unroll 4
  for (int64_t at = int64_t{8} * threadIdx.x; at < columns; at += step) {
    Eight<T> numbers;
    numbers.load(row + at);
    sizes.take(numbers);
  }
  const float scale = scale_of_size<format>(block_reduce(sizes.largest(), LargestWord{}, 0u));
  const float factor = __frcp_rn(scale);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
#pragma unroll 4
  for (int64_t at = int64_t{8} * threadIdx.x; at < columns; at += step) {
    Eight<T> numbers;
    numbers.load(row + at);
    __stwb(reinterpret_cast<uint2*>(codes + int64_t{blockIdx.x} * columns + at),
           numbers.template codes<format>(factor));
  }
}

// The largest sizes of columns. A block has 256 columns of 256 rows, a warp every eighth of these rows.
constexpr int strip_columns = 8 * warp_threads, strip_rows = 256;
static_assert(strip_columns == block_threads);

template <typename T>
__global__ void __launch_bounds__(block_threads)
    columns_kernel(const T* __restrict__ x, int64_t rows, int64_t columns, uint32_t* __restrict__ sizes) {
  __shared__ uint32_t of_strip[strip_columns];
  constexpr int warps = block_threads / warp_threads;
  const int own = static_cast<int>(threadIdx.x), warp = own / warp_threads, lane = own % warp_threads;
  const int64_t strips = (columns + strip_columns - 1) / strip_columns;
  const int64_t first_column = blockIdx.x % strips * strip_columns, first_row = blockIdx.x / strips * strip_rows;
  of_strip[own] = 0;
  __syncthreads();
  if (const int64_t column = first_column + lane * 8; column < columns) {
    EightSizes<T> of_warp;
#pragma unroll 4
    for (int64_t row = first_row + warp; row < min(first_row + strip_rows, rows); row += warps) {
      Eight<T> numbers;
      numbers.load(x + row * columns + column);
      of_warp.take(numbers);
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) atomicMax(&of_strip[lane * 8 + c], of_warp[c]);
  }
  __syncthreads();
  if (first_column + own < columns) raise(sizes + first_column + own, of_strip[own]);
}

constexpr int column_tile = 64;
using ColumnTile = TurnedTile<column_tile>;
static_assert(ColumnTile::threads == block_threads);

// The transpose, and a scale for each of its rows.
template <typename T, __nv_fp8_interpretation_t format>
__global__ void __launch_bounds__(block_threads)
    turned_rows_kernel(const T* __restrict__ x, int64_t rows, int64_t columns,
                       const uint32_t* __restrict__ column_sizes, uint8_t* __restrict__ turned,
                       float* __restrict__ turned_scales) {
  __shared__ ColumnTile tile;
  const int64_t column_tiles = (columns + column_tile - 1) / column_tile;
  const int64_t first_row = blockIdx.x / column_tiles * tile_rows,
                first_column = blockIdx.x % column_tiles * column_tile;
  const int64_t row = first_row + ColumnTile::own_row(), column = first_column + ColumnTile::own_column();
  if (row < rows && column < columns) {
    Eight<T> numbers[thread_rows];
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) numbers[r].load(x + (row + r) * columns + column);
    float factors[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float scale = scale_of_size<format>(column_sizes[column + c]);
      if (row == 0) turned_scales[column + c] = scale;
      factors[c] = __frcp_rn(scale);
    }
    uint2 made[thread_rows];
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) made[r] = numbers[r].template codes<format>(factors);
    tile.put(made);
  }
  __syncthreads();
  tile.store(turned, rows, columns, first_row, first_column);
}

// Threads of a block that has a row of so many columns in registers.
int threads_of_row(int64_t columns) {
  return static_cast<int>(
      std::min<int64_t>(divide_up(columns, int64_t{8} * warp_threads) * warp_threads, block_threads));
}

template <typename T, __nv_fp8_interpretation_t format, int eights>
void launch_rows_of(const ScaledF8& call, uint32_t* column_sizes, cudaStream_t stream) {
  // Several blocks for each multiprocessor, and few sizes of columns to compare.
  constexpr int64_t wanted_blocks = 1024, max_rows_per_block = 32;
  const int64_t rows_per_block = std::clamp<int64_t>(divide_up(call.rows, wanted_blocks), 1, max_rows_per_block);
  const auto blocks = static_cast<unsigned>(divide_up(call.rows, rows_per_block));
  const int threads = threads_of_row(call.columns);
  const auto* x = static_cast<const T*>(call.x);
  if (column_sizes)
    rows_kernel<T, format, eights, true><<<blocks, threads, 0, stream>>>(x, call.rows, call.columns, rows_per_block,
                                                                         call.codes, call.scales, column_sizes);
  else
    rows_kernel<T, format, eights, false>
        <<<blocks, threads, 0, stream>>>(x, call.rows, call.columns, rows_per_block, call.codes, call.scales, nullptr);
}

template <typename T, __nv_fp8_interpretation_t format>
void launch_rows(const ScaledF8& call, uint32_t* column_sizes, cudaStream_t stream) {
  constexpr int64_t columns_of_one = int64_t{8} * block_threads;
  if (call.columns <= columns_of_one)
    launch_rows_of<T, format, 1>(call, column_sizes, stream);
  else if (call.columns <= 2 * columns_of_one)
    launch_rows_of<T, format, 2>(call, column_sizes, stream);
  else if (call.columns <= 4 * columns_of_one)
    launch_rows_of<T, format, 4>(call, column_sizes, stream);
  else
    launch_rows_of<T, format, 8>(call, column_sizes, stream);
}

template <typename T, __nv_fp8_interpretation_t format>
void launch_by_rows(const ScaledF8& call, uint32_t* column_sizes, cudaStream_t stream) {
  const auto* x = static_cast<const T*>(call.x);
  const bool fits = call.columns <= max_row;
  if (call.codes && fits)
    launch_rows<T, format>(call, call.turned ? column_sizes : nullptr, stream);
  else if (call.codes)
    long_rows_kernel<T, format>
        <<<static_cast<unsigned>(call.rows), block_threads, 0, stream>>>(x, call.columns, call.codes, call.scales);
  if (!call.turned) return;
  if (!call.codes || !fits) {
    const int64_t blocks = divide_up(call.columns, int64_t{strip_columns}) * divide_up(call.rows, int64_t{strip_rows});
    columns_kernel<T>
        <<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(x, call.rows, call.columns, column_sizes);
  }
  const int64_t tiles = divide_up(call.rows, int64_t{tile_rows}) * divide_up(call.columns, int64_t{column_tile});
  turned_rows_kernel<T, format><<<static_cast<unsigned>(tiles), block_threads, 0, stream>>>(
      x, call.rows, call.columns, column_sizes, call.turned, call.turned_scales);
}

}  // namespace

cudaError_t rows_to_f8(const ScaledF8& call, uint32_t* workspace, cudaStream_t stream) {
  if (call.rows * call.columns == 0) return cudaSuccess;
  if (call.turned)
    if (const cudaError_t error =
            cudaMemsetAsync(workspace, 0, static_cast<size_t>(call.columns) * sizeof(uint32_t), stream);
        error != cudaSuccess)
      return error;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    call.type == Scalar::F8E4M3 ? launch_by_rows<T, __NV_E4M3>(call, workspace, stream)
                                : launch_by_rows<T, __NV_E5M2>(call, workspace, stream);
  });
}

}  // namespace plimsoll::cuda
