#pragma once

// Weights out of codes of 4 or 8 bits and their scales, and the codes of weights.

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

// The largest size of each block's numbers into `scales`, and the 4-bit codes of the numbers over it: how many of the
// 15 thresholds lie below. Numbers are multiplied by the reciprocal of the scale, those of a last shorter block divided
// by it, as bitsandbytes does on a CPU.
void quantize_4_bits(const float* x, int64_t n, int64_t block, const float* thresholds, uint8_t* codes, float* scales);

// For each block the largest size into `scales`, and of each number the code whose entry in the ascending `map` is
// nearest to it over the scale; in the middle the lower one.
void quantize_by_map(const float* x, int64_t n, int64_t block, const float* map, uint8_t* codes, float* scales);

// Rows of 8-bit integers: the largest size of a row into `scales`, and 127ths of it, rounded to even.
void quantize_int8(const float* x, int64_t rows, int64_t columns, int8_t* codes, float* scales);

}  // namespace plimsoll::cpu
