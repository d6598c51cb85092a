#pragma once

// What kernels share that make 8-bit floats: scales of largest numbers, and codes of eight numbers at a time.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/common/turned_words.cuh"

#include <cuda_fp8.h>

namespace plimsoll::cuda {

// Of numbers without their signs, bits are ordered as the numbers are, and those of NaN come last.
inline constexpr uint32_t size_bits = 0x7fffffff, infinity_bits = 0x7f800000;

struct LargestWord {
  __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

// Both types end at 1.75 times a power of two: 2^8 and 2^15.
__device__ inline float scale_of(uint32_t bits, Scalar codes) {
  if (bits == 0) return 1.0f;
  if (bits >= infinity_bits) return __uint_as_float(0x7fc00000);
  const int to = codes == Scalar::F8E4M3 ? 8 : 15;
  const int exponent = static_cast<int>(bits >> 23) - 127 - to + ((bits & 0x7fffff) > 0x600000 ? 1 : 0);
  return __uint_as_float(static_cast<uint32_t>((exponent < -126 ? -126 : exponent) + 127) << 23);
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
  template <__nv_fp8_interpretation_t format>
  __device__ uint2 codes(const float (&factors)[8]) const {
    const Eight& x = *this;
    return make_uint2(four_codes<format>(x[0] * factors[0], x[1] * factors[1], x[2] * factors[2], x[3] * factors[3]),
                      four_codes<format>(x[4] * factors[4], x[5] * factors[5], x[6] * factors[6], x[7] * factors[7]));
  }
};

// Without their signs, eight numbers as they lie. In 16 bits, too, bits are ordered as the numbers are.
template <typename T>
struct EightSizes {
  static constexpr bool is_f32 = std::is_same_v<T, float>;
  static constexpr int words = is_f32 ? 8 : 4;
  uint32_t word[words] = {};

  static __device__ uint32_t larger(uint32_t a, uint32_t b) {
    if constexpr (is_f32)
      return a > b ? a : b;
    else
      return __vmaxu2(a, b);
  }
  // 16 bits as those of f32.
  static __device__ uint32_t widened(uint32_t half) {
    if constexpr (std::is_same_v<T, bf16>)
      return half << 16;
    else
      return __float_as_uint(__half2float(__ushort_as_half(static_cast<unsigned short>(half))));
  }

  __device__ void take(const Eight<T>& x) {
#pragma unroll
    for (int i = 0; i < words; ++i)
      word[i] = larger(word[i], x.words[i / 4].word[i % 4] & (is_f32 ? size_bits : 0x7fff7fffu));
  }
  // Bits of f32.
  __device__ uint32_t operator[](int i) const {
    if constexpr (is_f32)
      return word[i];
    else
      return widened(i % 2 == 0 ? word[i / 2] & 0xffffu : word[i / 2] >> 16);
  }
  __device__ uint32_t largest() const {
    uint32_t most = word[0];
#pragma unroll
    for (int i = 1; i < words; ++i) most = larger(most, word[i]);
    if constexpr (is_f32)
      return most;
    else
      return widened(max(most & 0xffffu, most >> 16));
  }
};

template <__nv_fp8_interpretation_t format>
__device__ float scale_of_size(uint32_t bits) {
  return scale_of(bits, format == __NV_E4M3 ? Scalar::F8E4M3 : Scalar::F8E5M2);
}

constexpr int run_length = 16;  // codes that a thread writes at once

// Codes of 128 rows on their way to the transpose: each thread has 4 rows of 8 columns, and so 4 codes of each column
// in one word.
constexpr int tile_rows = 128, thread_rows = 4, thread_columns = 8;

template <int tile_columns>
struct TurnedTile {
  static constexpr int row_groups = tile_rows / thread_rows, column_groups = tile_columns / thread_columns,
                       threads = row_groups * column_groups;

  // The first row of four, and the first column of eight, of this thread in the tile.
  static __device__ int own_row() { return static_cast<int>(threadIdx.x) / column_groups * thread_rows; }
  static __device__ int own_column() { return static_cast<int>(threadIdx.x) % column_groups * thread_columns; }

  __device__ void put(const uint2 (&codes)[thread_rows]) {
    const uint32_t low[] = {codes[0].x, codes[1].x, codes[2].x, codes[3].x},
                   high[] = {codes[0].y, codes[1].y, codes[2].y, codes[3].y};
    const int group = own_row() / thread_rows, column = own_column();
    uint32_t turned[4];
    turn_words(low, turned);
#pragma unroll
    for (int c = 0; c < 4; ++c) words[column + c][group] = turned[c];
    turn_words(high, turned);
#pragma unroll
    for (int c = 0; c < 4; ++c) words[column + 4 + c][group] = turned[c];
  }

  // Writes the transpose of the tile at that place of [rows, columns], in runs.
  __device__ void store(uint8_t* turned, int64_t rows, int64_t columns, int64_t first_row, int64_t first_column) const {
    constexpr int runs = tile_rows / run_length;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < tile_columns * runs; i += threads) {
      const int column = i / runs, run = i % runs;
      const int64_t to_row = first_row + run * run_length, to_column = first_column + column;
      if (to_row >= rows || to_column >= columns) continue;
      const uint32_t* from = &words[column][run * (run_length / 4)];
      __stwb(reinterpret_cast<uint4*>(turned + to_column * rows + to_row),
             make_uint4(from[0], from[1], from[2], from[3]));
    }
  }

  uint32_t words[tile_columns][row_groups + 1];  // one more, so that columns begin in other banks
};

}  // namespace plimsoll::cuda
