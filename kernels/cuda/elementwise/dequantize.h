#pragma once

// Weights out of codes of 4 or 8 bits and their scales.

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// y[i] = values[code i] * scale * factor on n elements, each step rounded to f32 and the result to f32, bf16 or f16. Of
// two 4-bit codes in a byte the first is the high half. Each `block` elements in a row have a scale: scales[b], or with
// scale_codes map[scale_codes[b]] * scale_scales[b / 256] + offset.
struct Dequantize {
  const uint8_t* codes;
  const void* scales;  // of scale_type: f32, bf16 or f16; null with scale_codes
  Scalar scale_type;
  const uint8_t* scale_codes;  // null: scales are f32
  const float* scale_scales;
  const float* offset;
  int64_t block, n;
  float factor;
  float values[256];  // 16 of 4-bit codes
  float map[256];
};
[[nodiscard]] cudaError_t dequantize(const Dequantize& call, int bits, Scalar type, void* y, cudaStream_t stream);

// y[r, c] = (values[code] - zero point) * scale on [rows, columns], rounded to f32 and then to f32, bf16 or f16. Of two
// 4-bit codes in a byte the first is the low half. `block_rows` rows of `block` columns share a scale and a zero point.
struct DequantizeLinear {
  const uint8_t* codes;
  const void* scales;  // f32, bf16 or f16
  Scalar scale_type;
  const uint8_t* zeros;   // codes; null: `zero` everywhere
  int64_t zeros_per_row;  // codes from one row of blocks to the next
  float zero;
  int64_t rows, columns, block_rows, block;
  float values[256];  // 16 of 4-bit codes
};
[[nodiscard]] cudaError_t dequantize_linear(const DequantizeLinear& call, int bits, Scalar type, void* y,
                                            cudaStream_t stream);

}  // namespace plimsoll::cuda
