#include "kernels/cpu/elementwise/dequantize.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/elementwise/cast.h"

#include <algorithm>

// A block has few different numbers, so they are scaled and rounded once, and then looked up. Traffic is that of the
// result and a quarter of it. Blocks of a linear grid may be one number long: there each number is scaled by itself.

namespace plimsoll::cpu {
namespace {

template <typename T>
void look_up_4_bits(T* y, const T* table, const uint8_t* codes, int64_t first, int64_t count) {
  int64_t i = 0;
  if (first % 2 == 1 && count > 0) y[i++] = table[codes[first / 2] & 15];
  for (const uint8_t* pair = codes + (first + i) / 2; i + 1 < count; i += 2, ++pair) {
    y[i] = table[*pair >> 4];
    y[i + 1] = table[*pair & 15];
  }
  if (i < count) y[i] = table[codes[(first + i) / 2] >> 4];
}

template <typename T>
void dequantize_as(const Dequantize& how, T* y, Scalar type, const uint8_t* codes, const BlockScales& scales,
                   int64_t n) {
  const int numbers = 1 << how.bits;
  const int64_t blocks = (n + how.block - 1) / how.block;
  parallel_rows(blocks, how.block, [&](int64_t begin, int64_t end) {
    float scaled[256];
    T table[256];
    for (int64_t b = begin; b < end; ++b) {
      const float scale = scales.at(b);
      for (int c = 0; c < numbers; ++c) {
        const float product = how.values[c] * scale;
        scaled[c] = how.factor == 1 ? product : product * how.factor;
      }
      cast_elements(table, type, scaled, Scalar::F32, numbers);
      const int64_t first = b * how.block, count = std::min(how.block, n - first);
      if (how.bits == 4)
        look_up_4_bits(y + first, table, codes, first, count);
      else
        for (int64_t i = 0; i < count; ++i) y[first + i] = table[codes[first + i]];
    }
  });
}

constexpr int64_t columns_at_once = 256;

float float_at(const void* numbers, Scalar type, int64_t at) {
  if (type == Scalar::F32) return static_cast<const float*>(numbers)[at];
  float number = 0;
  cast_elements(&number, Scalar::F32, static_cast<const uint16_t*>(numbers) + at, type, 1);
  return number;
}

int code_of(int bits, const uint8_t* codes, int64_t i) {
  return bits == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
}

// Columns from `first` on of one row: `y` is their place in the result.
void dequantize_columns(const DequantizeLinear& how, void* y, Scalar type, const uint8_t* codes, int64_t row,
                        int64_t first, int64_t count) {
  const int64_t grid_row = row / how.block_rows, grid_columns = (how.columns + how.block - 1) / how.block;
  float numbers[columns_at_once], scales[columns_at_once], zeros[columns_at_once];
  for (int64_t at = first; at < first + count;) {
    const int64_t block = at / how.block, end = std::min((block + 1) * how.block, first + count);
    const float scale = float_at(how.scales, how.scale_type, grid_row * grid_columns + block);
    const float zero =
        how.zeros ? how.values[code_of(how.bits, how.zeros, grid_row * how.zeros_per_row + block)] : how.zero;
    std::fill(scales + at - first, scales + end - first, scale);
    std::fill(zeros + at - first, zeros + end - first, zero);
    at = end;
  }
  const int64_t begin = row * how.columns + first;
  for (int64_t i = 0; i < count; ++i) numbers[i] = how.values[code_of(how.bits, codes, begin + i)];
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) numbers[i] = (numbers[i] - zeros[i]) * scales[i];
  cast_elements(y, type, numbers, Scalar::F32, count);
}

}  // namespace

float BlockScales::at(int64_t block) const {
  if (!scale_codes) return float_at(scales, scale_type, block);
  const float scaled = map[scale_codes[block]] * scale_scales[block / 256];
  return scaled + *offset;
}

void dequantize_linear(const DequantizeLinear& how, void* y, Scalar type, const uint8_t* codes) {
  const int64_t size = type == Scalar::F32 ? 4 : 2;
  parallel_rows(how.rows, how.columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t first = 0; first < how.columns; first += columns_at_once)
        dequantize_columns(how, static_cast<char*>(y) + (row * how.columns + first) * size, type, codes, row, first,
                           std::min(columns_at_once, how.columns - first));
  });
}

void dequantize(const Dequantize& how, void* y, Scalar type, const uint8_t* codes, const BlockScales& scales,
                int64_t n) {
  if (type == Scalar::F32) return dequantize_as(how, static_cast<float*>(y), type, codes, scales, n);
  dequantize_as(how, static_cast<uint16_t*>(y), type, codes, scales, n);
}

}  // namespace plimsoll::cpu
