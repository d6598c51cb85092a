#include "kernels/cpu/elementwise/dequantize.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/elementwise/cast.h"

#include <cmath>
#include <cstring>

// A block has few different numbers, so they are scaled and rounded once, and then looked up. Traffic is that of the
// result and a quarter of it.

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

float largest_size(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

// How many of the thresholds lie below the number.
uint8_t code_of(float x, const float* thresholds) {
  int code = 0;
  for (int i = 0; i < 15; ++i) code += thresholds[i] < x;
  return static_cast<uint8_t>(code);
}

uint8_t nearest(float x, const float* map) {
  int below = 0, above = 255;  // map[below] <= x <= map[above], where x lies within the map
  while (above - below > 1) {
    const int middle = (below + above) / 2;
    (map[middle] <= x ? below : above) = middle;
  }
  const float between = (map[below] + map[above]) / 2;
  return static_cast<uint8_t>(x > between ? above : below);
}

}  // namespace

void dequantize(const Dequantize& how, void* y, Scalar type, const uint8_t* codes, const BlockScales& scales,
                int64_t n) {
  if (type == Scalar::F32) return dequantize_as(how, static_cast<float*>(y), type, codes, scales, n);
  dequantize_as(how, static_cast<uint16_t*>(y), type, codes, scales, n);
}

void quantize_4_bits(const float* x, int64_t n, int64_t block, const float* thresholds, uint8_t* codes, float* scales) {
  const int64_t blocks = (n + block - 1) / block;
  // A byte belongs to the block of its first code, so blocks of an odd size go one after the other.
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * block, count = std::min(block, n - first);
      const float scale = largest_size(x + first, count), factor = scale > 0 ? 1 / scale : 0;
      scales[b] = scale;
      const bool divides = count < block && scale > 0;
      for (int64_t i = first; i < first + count; ++i) {
        const uint8_t code = code_of(divides ? x[i] / scale : x[i] * factor, thresholds);
        if (i % 2 == 0)
          codes[i / 2] = static_cast<uint8_t>(code << 4);
        else
          codes[i / 2] = static_cast<uint8_t>(codes[i / 2] | code);
      }
    }
  };
  if (block % 2 == 0)
    parallel_rows(blocks, 8 * block, run);
  else
    run(0, blocks);
}

void quantize_by_map(const float* x, int64_t n, int64_t block, const float* map, uint8_t* codes, float* scales) {
  parallel_rows((n + block - 1) / block, 8 * block, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * block, count = std::min(block, n - first);
      const float scale = largest_size(x + first, count);
      scales[b] = scale;
      for (int64_t i = first; i < first + count; ++i) codes[i] = nearest(scale > 0 ? x[i] / scale : 0, map);
    }
  });
}

void quantize_int8(const float* x, int64_t rows, int64_t columns, int8_t* codes, float* scales) {
  parallel_rows(rows, columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float scale = largest_size(x + r * columns, columns), factor = scale > 0 ? 127 / scale : 0;
      scales[r] = scale;
      for (int64_t i = r * columns; i < (r + 1) * columns; ++i)
        codes[i] = static_cast<int8_t>(std::nearbyint(x[i] * factor));
    }
  });
}

}  // namespace plimsoll::cpu
