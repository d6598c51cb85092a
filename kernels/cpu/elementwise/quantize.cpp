#include "kernels/cpu/elementwise/quantize.h"

#include "kernels/cpu/common/f8_code.h"
#include "kernels/cpu/common/parallel.h"

#include <bit>
#include <cmath>
#include <limits>

// Reads a weight twice and writes a quarter of it or less. Loops compare or round whole vectors of numbers; none
// searches.

namespace plimsoll::cpu {
namespace {

constexpr int64_t codes_at_once = 1024;
constexpr int thresholds_of_4_bits = 15;
constexpr float fp8_largest = 448;

// The bits of a size, which order as sizes do; of NaN those of 0.
PLIMSOLL_INLINE int32_t size_bits(float x) {
  const int32_t size = std::bit_cast<int32_t>(x) & std::numeric_limits<int32_t>::max();
  return size > std::bit_cast<int32_t>(std::numeric_limits<float>::infinity()) ? 0 : size;
}

// Lanes are spelled out: a simd reduction sets up and sums its lanes one by one, which takes longer than a block of 64.
PLIMSOLL_INLINE float largest_size(const float* x, int64_t n) {
  constexpr int64_t lanes = 16;
  int32_t largest[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < lanes; ++lane) largest[lane] = std::max(largest[lane], size_bits(x[i + lane]));
  }
  for (; i < n; ++i) largest[0] = std::max(largest[0], size_bits(x[i]));
#pragma GCC unroll 4
  for (int64_t half = lanes / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int64_t lane = 0; lane < half; ++lane) largest[lane] = std::max(largest[lane], largest[lane + half]);
  return std::bit_cast<float>(largest[0]);
}

// Numbers over the scale of their block. One that `divides` is as bitsandbytes treats a last shorter block.
PLIMSOLL_INLINE void shares_of(float* shares, const float* x, float scale, bool divides, int64_t n) {
  const float factor = scale > 0 ? 1 / scale : 0;
  if (divides && scale > 0) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) shares[i] = x[i] / scale;
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) shares[i] = x[i] * factor;
  }
}

// How many of the thresholds lie below each share. A code is as wide as a share until codes become bytes: vectors of
// both then have as many elements.
PLIMSOLL_INLINE void codes_of(int32_t* codes, const float* shares, const float* thresholds, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    int32_t code = 0;
#pragma GCC unroll 15
    for (int t = 0; t < thresholds_of_4_bits; ++t) code += thresholds[t] < shares[i] ? 1 : 0;
    codes[i] = code;
  }
}

// Two codes a byte.
PLIMSOLL_INLINE void codes_of_shares(uint8_t* codes, const float* shares, const float* thresholds, int64_t n) {
  int32_t made[codes_at_once + 1];
  codes_of(made, shares, thresholds, n);
  if (n % 2 == 1) made[n] = 0;  // the half of a byte behind the last code
#pragma omp simd
  for (int64_t i = 0; i < (n + 1) / 2; ++i) codes[i] = static_cast<uint8_t>(made[2 * i] << 4 | made[2 * i + 1]);
}

// Blocks of an even size from `begin` to `end`. The shares of several small ones get their codes together.
PLIMSOLL_VECTORISED void quantize_even_blocks(const float* x, int64_t n, int64_t block, const float* thresholds,
                                              uint8_t* codes, float* scales, int64_t begin, int64_t end) {
  float own_thresholds[thresholds_of_4_bits];
  for (int t = 0; t < thresholds_of_4_bits; ++t) own_thresholds[t] = thresholds[t];
  float shares[codes_at_once];
  int64_t held = 0;
  uint8_t* out = codes + begin * block / 2;
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = b * block, count = std::min(block, n - first);
    const float scale = largest_size(x + first, count);
    scales[b] = scale;
    for (int64_t done = 0; done < count;) {
      const int64_t now = std::min(codes_at_once - held, count - done);
      shares_of(shares + held, x + first + done, scale, count < block, now);
      done += now, held += now;
      if (held < codes_at_once) continue;
      codes_of_shares(out, shares, own_thresholds, held);
      out += held / 2, held = 0;
    }
  }
  codes_of_shares(out, shares, own_thresholds, held);
}

// Blocks of an odd size share bytes: one goes after the other.
void quantize_odd_blocks(const float* x, int64_t n, int64_t block, const float* thresholds, uint8_t* codes,
                         float* scales) {
  for (int64_t first = 0; first < n; first += block) {
    const int64_t count = std::min(block, n - first);
    const float scale = largest_size(x + first, count);
    scales[first / block] = scale;
    for (int64_t i = first; i < first + count; ++i) {
      float share = 0;
      int32_t code = 0;
      shares_of(&share, x + i, scale, count < block, 1);
      codes_of(&code, &share, thresholds, 1);
      codes[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? code << 4 : codes[i / 2] | code);
    }
  }
}

// Every number takes the same eight steps through the map, so that whole vectors do.
PLIMSOLL_VECTORISED void nearest_of(uint8_t* codes, const float* x, float scale, const float* map, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float share = x[i] / scale;
    int32_t below = 0;  // the last one that is not above the share
#pragma GCC unroll 8
    for (int32_t step = 128; step > 0; step /= 2) below += map[below + step] <= share ? step : 0;
    below = std::min(below, 254);
    const float between = (map[below] + map[below + 1]) / 2;
    codes[i] = static_cast<uint8_t>(below + (share > between ? 1 : 0));
  }
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
    if (scale == 0) {
      std::fill(own, own + columns, uint8_t{0});
      continue;
    }
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      const float share = row[c] / scale;
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
      nearest_of(codes + first, x + first, scale > 0 ? scale : std::numeric_limits<float>::infinity(), map, count);
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

}  // namespace plimsoll::cpu
