#include "kernels/cpu/elementwise/quantize.h"

#include "kernels/cpu/common/f8_code.h"
#include "kernels/cpu/common/parallel.h"

#include <cmath>

// Reads a weight twice and writes a quarter of it or less. Loops compare or round whole vectors of numbers; none
// searches.

namespace plimsoll::cpu {
namespace {

constexpr int64_t codes_at_once = 256;
constexpr int thresholds_of_4_bits = 15;
constexpr float fp8_largest = 448;

PLIMSOLL_INLINE float largest_size(const float* x, int64_t n) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

// How many of the thresholds lie below each number over the scale.
PLIMSOLL_INLINE void codes_of(uint8_t* codes, const float* x, float scale, float factor, bool divides,
                              const float* thresholds, int64_t n) {
  float shares[codes_at_once];
  if (divides) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) shares[i] = x[i] / scale;
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) shares[i] = x[i] * factor;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    int code = 0;
#pragma GCC unroll 15
    for (int t = 0; t < thresholds_of_4_bits; ++t) code += thresholds[t] < shares[i] ? 1 : 0;
    codes[i] = static_cast<uint8_t>(code);
  }
}

// Blocks of an even size from `begin` to `end`.
PLIMSOLL_VECTORISED void quantize_even_blocks(const float* x, int64_t n, int64_t block, const float* thresholds,
                                              uint8_t* codes, float* scales, int64_t begin, int64_t end) {
  float own_thresholds[thresholds_of_4_bits];
  for (int t = 0; t < thresholds_of_4_bits; ++t) own_thresholds[t] = thresholds[t];
  uint8_t made[codes_at_once];
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = b * block, count = std::min(block, n - first);
    const float scale = largest_size(x + first, count), factor = scale > 0 ? 1 / scale : 0;
    scales[b] = scale;
    for (int64_t done = 0; done < count; done += codes_at_once) {
      const int64_t now = std::min(codes_at_once, count - done), at = first + done;
      codes_of(made, x + at, scale, factor, count < block && scale > 0, own_thresholds, now);
      if (now % 2 == 1) made[now] = 0;  // the half of a byte behind the last code
#pragma omp simd
      for (int64_t i = 0; i < (now + 1) / 2; ++i)
        codes[at / 2 + i] = static_cast<uint8_t>(made[2 * i] << 4 | made[2 * i + 1]);
    }
  }
}

// Blocks of an odd size share bytes: one goes after the other.
void quantize_odd_blocks(const float* x, int64_t n, int64_t block, const float* thresholds, uint8_t* codes,
                         float* scales) {
  for (int64_t first = 0; first < n; first += block) {
    const int64_t count = std::min(block, n - first);
    const float scale = largest_size(x + first, count), factor = scale > 0 ? 1 / scale : 0;
    scales[first / block] = scale;
    for (int64_t i = first; i < first + count; ++i) {
      uint8_t code = 0;
      codes_of(&code, x + i, scale, factor, count < block && scale > 0, thresholds, 1);
      codes[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? code << 4 : codes[i / 2] | code);
    }
  }
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

PLIMSOLL_VECTORISED void quantize_int8_rows(const float* x, int64_t columns, int8_t* codes, float* scales,
                                            int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float *row = x + r * columns, scale = largest_size(row, columns), factor = scale > 0 ? 127 / scale : 0;
    int8_t* own = codes + r * columns;
    scales[r] = scale;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c)
      own[c] = static_cast<int8_t>(static_cast<int32_t>(std::nearbyint(row[c] * factor)));
  }
}

PLIMSOLL_VECTORISED void quantize_fp8_rows(const float* x, int64_t columns, uint8_t* codes, float* scales,
                                           int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float *row = x + r * columns, scale = largest_size(row, columns) / fp8_largest;
    uint8_t* own = codes + r * columns;
    scales[r] = scale;
    const float divisor = scale > 0 ? scale : 1.0F;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      const float share = scale > 0 ? row[c] / divisor : 0.0F;
      own[c] = f8_code<3, 7>(share > fp8_largest ? fp8_largest : share < -fp8_largest ? -fp8_largest : share);
    }
  }
}

}  // namespace

void quantize_4_bits(const float* x, int64_t n, int64_t block, const float* thresholds, uint8_t* codes, float* scales) {
  // A byte belongs to the block of its first code.
  if (block % 2 == 1) return quantize_odd_blocks(x, n, block, thresholds, codes, scales);
  parallel_rows((n + block - 1) / block, 4 * block, [&](int64_t begin, int64_t end) {
    quantize_even_blocks(x, n, block, thresholds, codes, scales, begin, end);
  });
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
  parallel_rows(rows, columns,
                [&](int64_t begin, int64_t end) { quantize_int8_rows(x, columns, codes, scales, begin, end); });
}

void quantize_fp8(const float* x, int64_t rows, int64_t columns, uint8_t* codes, float* scales) {
  parallel_rows(rows, columns,
                [&](int64_t begin, int64_t end) { quantize_fp8_rows(x, columns, codes, scales, begin, end); });
}

// By way of a small tile, so that both sides are touched in runs.
void turn(float* to, const float* from, int64_t rows, int64_t columns) {
  constexpr int64_t side = 128;
  parallel_rows((columns + side - 1) / side, side * rows, [&](int64_t begin, int64_t end) {
    float tile[side][side + 1];
    for (int64_t column = begin * side; column < std::min(columns, end * side); column += side) {
      const int64_t wide = std::min(side, columns - column);
      for (int64_t row = 0; row < rows; row += side) {
        const int64_t high = std::min(side, rows - row);
        for (int64_t r = 0; r < high; ++r)
          for (int64_t c = 0; c < wide; ++c) tile[c][r] = from[(row + r) * columns + column + c];
        for (int64_t c = 0; c < wide; ++c) std::copy(tile[c], tile[c] + high, to + (column + c) * rows + row);
      }
    }
  });
}

}  // namespace plimsoll::cpu
