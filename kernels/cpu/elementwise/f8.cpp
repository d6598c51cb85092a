#include "kernels/cpu/elementwise/f8.h"

#include "kernels/cpu/common/f8_code.h"
#include "kernels/cpu/common/parallel.h"

#include <atomic>
#include <cstring>
#include <limits>

namespace plimsoll::cpu {
namespace {

constexpr uint32_t size_bits = 0x7fffffff, infinity_bits = 0x7f800000;

// Of numbers without their signs, bits are ordered as the numbers are, and those of NaN come last.
PLIMSOLL_VECTORISED uint32_t largest_bits(const float* x, int64_t begin, int64_t end) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & size_bits);
  return largest;
}

struct E4M3 {
  static constexpr float largest = 448;
  static PLIMSOLL_INLINE uint8_t code(float x) { return f8_code<3, 7>(x); }
};
struct E5M2 {
  static constexpr float largest = 57344;
  static PLIMSOLL_INLINE uint8_t code(float x) { return f8_code<2, 15>(x); }
};

template <typename Format>
PLIMSOLL_INLINE void code_run(const float* x, int64_t n, float factor, uint8_t* codes) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] * factor;
    codes[i] = Format::code(scaled > Format::largest    ? Format::largest
                            : scaled < -Format::largest ? -Format::largest
                                                        : scaled);
  }
}

PLIMSOLL_VECTORISED void e4m3_run(const float* x, int64_t n, float factor, uint8_t* codes) {
  code_run<E4M3>(x, n, factor, codes);
}
PLIMSOLL_VECTORISED void e5m2_run(const float* x, int64_t n, float factor, uint8_t* codes) {
  code_run<E5M2>(x, n, factor, codes);
}

PLIMSOLL_VECTORISED void from_f8_range(const uint8_t* codes, int64_t begin, int64_t end, const float* values,
                                       float scale, float* y) {
  for (int64_t i = begin; i < end; ++i) y[i] = values[codes[i]] * scale;
}

}  // namespace

float f8_scale(const float* x, int64_t n, Scalar codes) {
  std::atomic<uint32_t> all{0};
  parallel_ranges(n, 1, [&](int64_t begin, int64_t end) {
    const uint32_t own = largest_bits(x, begin, end);
    for (uint32_t seen = all; seen < own && !all.compare_exchange_weak(seen, own);) {
    }
  });
  const uint32_t bits = all;
  if (bits == 0) return 1;
  if (bits >= infinity_bits) return std::numeric_limits<float>::quiet_NaN();
  // Both types end at 1.75 times a power of two.
  constexpr uint32_t mantissa = 0x7fffff, of_largest = 0x600000;
  const int to = codes == Scalar::F8E4M3 ? 8 : 15;
  const int exponent = static_cast<int>(bits >> 23) - 127 - to + ((bits & mantissa) > of_largest ? 1 : 0);
  return std::bit_cast<float>(static_cast<uint32_t>(std::max(exponent, -126) + 127) << 23);
}

// By way of a tile of codes, so that both layouts are written in runs.
void to_f8(const float* x, int64_t rows, int64_t columns, float scale, Scalar type, uint8_t* codes, uint8_t* turned) {
  constexpr int64_t side = 64;
  const auto run = type == Scalar::F8E4M3 ? e4m3_run : e5m2_run;
  const float factor = 1 / scale;
  parallel_rows((rows + side - 1) / side, 4 * side * columns, [&](int64_t begin, int64_t end) {
    uint8_t tile[side][side];
    for (int64_t row = begin * side; row < std::min(rows, end * side); row += side) {
      const int64_t high = std::min(side, rows - row);
      for (int64_t column = 0; column < columns; column += side) {
        const int64_t wide = std::min(side, columns - column);
        for (int64_t r = 0; r < high; ++r) {
          const int64_t at = (row + r) * columns + column;
          run(x + at, wide, factor, tile[r]);
          if (codes) std::memcpy(codes + at, tile[r], static_cast<size_t>(wide));
        }
        for (int64_t c = 0; turned && c < wide; ++c)
          for (int64_t r = 0; r < high; ++r) turned[(column + c) * rows + row + r] = tile[r][c];
      }
    }
  });
}

void from_f8(const uint8_t* codes, int64_t n, const float* values, float scale, float* y) {
  parallel_ranges(n, 2, [&](int64_t begin, int64_t end) { from_f8_range(codes, begin, end, values, scale, y); });
}

}  // namespace plimsoll::cpu
