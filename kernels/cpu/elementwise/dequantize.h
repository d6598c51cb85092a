#pragma once

// Weights out of codes of 4 or 8 bits and their scales.

#include "kernels/scalar.h"

namespace plimsoll::cpu {

// The scale of each block: `scales`, or with `scale_codes` map[code] * scale_scales[block / 256] + offset.
struct BlockScales {
  const float* scales = nullptr;
  const uint8_t* scale_codes = nullptr;
  const float* scale_scales = nullptr;
  const float* offset = nullptr;
  const float* map = nullptr;  // 256 numbers

  float at(int64_t block) const {
    if (!scale_codes) return scales[block];
    const float scaled = map[scale_codes[block]] * scale_scales[block / 256];
    return scaled + *offset;
  }
};

// y[i] = values[code i] * scale * factor, each step rounded to f32 and the result to f32, bf16 or f16. Codes have
// `bits` bits, 4 or 8; of two in a byte the first is the high half.
struct Dequantize {
  int bits = 4;
  const float* values = nullptr;  // 16 or 256
  float factor = 1;
  int64_t block = 64;
};
void dequantize(const Dequantize& how, void* y, Scalar type, const uint8_t* codes, const BlockScales& scales,
                int64_t n);

}  // namespace plimsoll::cpu
