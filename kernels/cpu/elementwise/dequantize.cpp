#include "kernels/cpu/elementwise/dequantize.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/elementwise/cast.h"

#include <algorithm>

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

}  // namespace

void dequantize(const Dequantize& how, void* y, Scalar type, const uint8_t* codes, const BlockScales& scales,
                int64_t n) {
  if (type == Scalar::F32) return dequantize_as(how, static_cast<float*>(y), type, codes, scales, n);
  dequantize_as(how, static_cast<uint16_t*>(y), type, codes, scales, n);
}

}  // namespace plimsoll::cpu
