#pragma once

// Weights out of codes of 4 or 8 bits and their scales.

#include "kernels/scalar.h"

namespace plimsoll::cpu {

// The scale of each block: `scales` (f32, bf16 or f16), or with `scale_codes` map[code] * scale_scales[block / 256] +
// offset.
struct BlockScales {
  const void* scales = nullptr;
  Scalar scale_type = Scalar::F32;
  const uint8_t* scale_codes = nullptr;
  const float* scale_scales = nullptr;
  const float* offset = nullptr;
  const float* map = nullptr;  // 256 numbers

  float at(int64_t block) const;
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

// y[r, c] = (values[code] - zero point) * scale on [rows, columns], rounded to f32 and then to f32, bf16 or f16. Of two
// 4-bit codes in a byte the first is the low half. `block_rows` rows of `block` columns share a scale and a zero point.
struct DequantizeLinear {
  int bits = 4;
  const float* values = nullptr;  // 16 or 256
  int64_t rows = 0, columns = 0, block_rows = 1, block = 1;
  const void* scales = nullptr;  // f32, bf16 or f16
  Scalar scale_type = Scalar::F32;
  const uint8_t* zeros = nullptr;  // codes; null: `zero` everywhere
  int64_t zeros_per_row = 0;       // codes from one row of blocks to the next
  float zero = 0;
};
void dequantize_linear(const DequantizeLinear& how, void* y, Scalar type, const uint8_t* codes);

}  // namespace plimsoll::cpu
