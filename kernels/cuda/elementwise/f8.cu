#include "kernels/cuda/elementwise/f8.h"

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/common/turned_words.cuh"
#include "kernels/cuda/elementwise/f8_sizes.h"

#include <cuda_fp8.h>

// Serves f8_scale and to_f8. The first reads every number once; blocks leave a word for each part, from which one block
// makes the scale, unless there is but one. The second reads every number once, in 16-byte words, and writes each
// layout of the codes once; the transpose goes by way of a tile in shared memory, so that both layouts are written in
// runs of 64 bytes and more.

namespace plimsoll::cuda {
namespace {

constexpr int last_threads = 1024;
constexpr uint32_t size_bits = 0x7fffffff, infinity_bits = 0x7f800000;

struct LargestWord {
  __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

// Both types end at 1.75 times a power of two: 2^8 and 2^15.
__device__ float scale_of(uint32_t bits, Scalar codes) {
  if (bits == 0) return 1.0f;
  if (bits >= infinity_bits) return __uint_as_float(0x7fffffff);
  const int to = codes == Scalar::F8E4M3 ? 8 : 15;
  const int exponent = static_cast<int>(bits >> 23) - 127 - to + ((bits & 0x7fffff) > 0x600000 ? 1 : 0);
  return __uint_as_float(static_cast<uint32_t>((exponent < -126 ? -126 : exponent) + 127) << 23);
}

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

// Four codes, the first in the lowest byte. Rounds to even; what lies behind the largest code becomes it.
template <__nv_fp8_interpretation_t format>
__device__ uint32_t four_codes(float a, float b, float c, float d) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, format);
  const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, format);
  return low | high << 16;
}

// Eight numbers of 16 bits are one word of 16 bytes, those of f32 two.
template <typename T>
struct Eight {
  static constexpr int length = 16 / sizeof(T), count = 8 / length;
  Packed<T, length> words[count];

  __device__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < count; ++i) words[i] = load_packed<length>(from + i * length);
  }
  __device__ float operator[](int i) const { return words[i / length][i % length]; }

  template <__nv_fp8_interpretation_t format>
  __device__ uint2 codes(float factor) const {
    const Eight& x = *this;
    return make_uint2(four_codes<format>(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor),
                      four_codes<format>(x[4] * factor, x[5] * factor, x[6] * factor, x[7] * factor));
  }
};

constexpr int run_length = 16;  // codes that a thread writes at once

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

// A tile of 128 x 64 numbers: each thread takes 4 rows of 8 columns, and so has 4 codes of each column in one word.
constexpr int tile_rows = 128, tile_columns = 64, thread_rows = 4, thread_columns = 8;
constexpr int words_per_column = tile_rows / thread_rows;
static_assert(tile_rows / thread_rows * (tile_columns / thread_columns) == block_threads);

template <typename T, __nv_fp8_interpretation_t format, bool with_rows>
__global__ void __launch_bounds__(block_threads)
    turned_kernel(const T* __restrict__ x, int64_t rows, int64_t columns, const float* __restrict__ scale,
                  uint8_t* __restrict__ codes, uint8_t* __restrict__ turned) {
  __shared__ uint32_t tile[tile_columns][words_per_column + 1];  // one more, so that columns begin in other banks
  const int64_t column_tiles = (columns + tile_columns - 1) / tile_columns;
  const int64_t first_row = blockIdx.x / column_tiles * tile_rows,
                first_column = blockIdx.x % column_tiles * tile_columns;
  const int group = static_cast<int>(threadIdx.x) / (tile_columns / thread_columns),
            offset = static_cast<int>(threadIdx.x) % (tile_columns / thread_columns) * thread_columns;
  const int64_t row = first_row + group * thread_rows, column = first_column + offset;
  if (row < rows && column < columns) {
    const float factor = __frcp_rn(*scale);
    Eight<T> numbers[thread_rows];
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) numbers[r].load(x + (row + r) * columns + column);
    uint32_t low[thread_rows], high[thread_rows], turned_words[4];
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) {
      const uint2 made = numbers[r].template codes<format>(factor);
      low[r] = made.x, high[r] = made.y;
      if constexpr (with_rows) __stwb(reinterpret_cast<uint2*>(codes + (row + r) * columns + column), made);
    }
    turn_words(low, turned_words);
#pragma unroll
    for (int c = 0; c < 4; ++c) tile[offset + c][group] = turned_words[c];
    turn_words(high, turned_words);
#pragma unroll
    for (int c = 0; c < 4; ++c) tile[offset + 4 + c][group] = turned_words[c];
  }
  __syncthreads();
  constexpr int chunks = tile_rows / run_length;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < tile_columns * chunks; i += block_threads) {
    const int own_column = i / chunks, chunk = i % chunks;
    const int64_t to_row = first_row + chunk * run_length, to_column = first_column + own_column;
    if (to_row >= rows || to_column >= columns) continue;
    const uint32_t* from = &tile[own_column][chunk * (run_length / 4)];
    __stwb(reinterpret_cast<uint4*>(turned + to_column * rows + to_row),
           make_uint4(from[0], from[1], from[2], from[3]));
  }
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
