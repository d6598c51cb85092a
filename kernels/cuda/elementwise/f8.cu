#include "kernels/cuda/elementwise/f8.h"

#include "kernels/cuda/elementwise/f8_codes.cuh"
#include "kernels/cuda/elementwise/f8_sizes.h"

// Serves f8_scale and to_f8. The first reads every number once; blocks leave a word for each part, from which one block
// makes the scale, unless there is but one. The second reads every number once, in 16-byte words, and writes each
// layout of the codes once; the transpose goes by way of a tile in shared memory, so that both layouts are written in
// runs of 64 bytes and more.

namespace plimsoll::cuda {
namespace {

constexpr int last_threads = 1024;

// Of numbers without their signs, bits are ordered as the numbers are, and those of NaN come last. A block that has all
// numbers makes the scale.
template <typename T>
__global__ void __launch_bounds__(block_threads)
    largest_kernel(const T* __restrict__ x, int64_t n, int64_t part_elements, uint32_t* __restrict__ parts,
                   Scalar codes, float* __restrict__ scale) {
  const int64_t begin = min(int64_t{blockIdx.x} * part_elements, n), end = min(begin + part_elements, n);
  uint32_t largest = 0;
  for_row(x + begin, end - begin, static_cast<int>(threadIdx.x), block_threads, [&](int64_t, const auto& values) {
    for (T value : values.at) {
      const uint32_t bits = __float_as_uint(widen(value)) & size_bits;
      largest = bits > largest ? bits : largest;
    }
  });
  largest = block_reduce(largest, LargestWord{}, 0u);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1)
    *scale = scale_of(largest, codes);
  else
    parts[blockIdx.x] = largest;
}

__global__ void __launch_bounds__(last_threads)
    scale_kernel(const uint32_t* __restrict__ parts, int count, Scalar codes, float* __restrict__ scale) {
  const int i = static_cast<int>(threadIdx.x);
  const uint32_t largest = block_reduce(i < count ? parts[i] : 0u, LargestWord{}, 0u);
  if (i == 0) *scale = scale_of(largest, codes);
}

template <typename T, __nv_fp8_interpretation_t format>
__global__ void __launch_bounds__(block_threads)
    rows_kernel(const T* __restrict__ x, int64_t n, const float* __restrict__ scale, uint8_t* __restrict__ codes) {
  const int64_t at = (int64_t{blockIdx.x} * block_threads + threadIdx.x) * run_length;
  if (at >= n) return;
  const float factor = __frcp_rn(*scale);
  Eight<T> low, high;
  low.load(x + at);
  high.load(x + at + 8);
  const uint2 first = low.template codes<format>(factor), second = high.template codes<format>(factor);
  __stwb(reinterpret_cast<uint4*>(codes + at), make_uint4(first.x, first.y, second.x, second.y));
}

constexpr int tile_columns = 64;
using Tile = TurnedTile<tile_columns>;
static_assert(Tile::threads == block_threads);

template <typename T, __nv_fp8_interpretation_t format, bool with_rows>
__global__ void __launch_bounds__(block_threads)
    turned_kernel(const T* __restrict__ x, int64_t rows, int64_t columns, const float* __restrict__ scale,
                  uint8_t* __restrict__ codes, uint8_t* __restrict__ turned) {
  __shared__ Tile tile;
  const int64_t column_tiles = (columns + tile_columns - 1) / tile_columns;
  const int64_t first_row = blockIdx.x / column_tiles * tile_rows,
                first_column = blockIdx.x % column_tiles * tile_columns;
  const int64_t row = first_row + Tile::own_row(), column = first_column + Tile::own_column();
  if (row < rows && column < columns) {
    const float factor = __frcp_rn(*scale);
    Eight<T> numbers[thread_rows];
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) numbers[r].load(x + (row + r) * columns + column);
    uint2 made[thread_rows];
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) {
      made[r] = numbers[r].template codes<format>(factor);
      if constexpr (with_rows) __stwb(reinterpret_cast<uint2*>(codes + (row + r) * columns + column), made[r]);
    }
    tile.put(made);
  }
  __syncthreads();
  tile.store(turned, rows, columns, first_row, first_column);
}

template <typename T, __nv_fp8_interpretation_t format>
void launch_codes(const ToF8& call, cudaStream_t stream) {
  const auto* x = static_cast<const T*>(call.x);
  const int64_t n = call.rows * call.columns;
  const auto tiles =
      static_cast<unsigned>(divide_up(call.rows, int64_t{tile_rows}) * divide_up(call.columns, int64_t{tile_columns}));
  if (!call.turned)
    rows_kernel<T, format><<<blocks_for(n, int64_t{block_threads} * run_length), block_threads, 0, stream>>>(
        x, n, call.scale, call.codes);
  else if (call.codes)
    turned_kernel<T, format, true>
        <<<tiles, block_threads, 0, stream>>>(x, call.rows, call.columns, call.scale, call.codes, call.turned);
  else
    turned_kernel<T, format, false>
        <<<tiles, block_threads, 0, stream>>>(x, call.rows, call.columns, call.scale, call.codes, call.turned);
}

}  // namespace

cudaError_t f8_scale(const F8Scale& call, cudaStream_t stream) {
  const int64_t parts = f8_parts(call.n);
  // Parts begin at multiples of 16 bytes.
  const int64_t part_elements = divide_up(divide_up(call.n, parts), int64_t{16}) * 16;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    largest_kernel<T><<<static_cast<unsigned>(parts), block_threads, 0, stream>>>(
        static_cast<const T*>(call.x), call.n, part_elements, call.workspace, call.codes, call.scale);
    if (parts > 1)
      scale_kernel<<<1, last_threads, 0, stream>>>(call.workspace, static_cast<int>(parts), call.codes, call.scale);
  });
}

cudaError_t to_f8(const ToF8& call, cudaStream_t stream) {
  if (call.rows * call.columns == 0) return cudaSuccess;
  return with_f32_math(call.x_type, [&]<typename T>(T*) {
    call.type == Scalar::F8E4M3 ? launch_codes<T, __NV_E4M3>(call, stream) : launch_codes<T, __NV_E5M2>(call, stream);
  });
}

}  // namespace plimsoll::cuda
