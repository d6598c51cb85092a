#pragma once

// Codes of weights, and their scales.

#include <cstdint>

namespace plimsoll::cpu {

// The largest size of each block's numbers into `scales`, and the 4-bit codes of the numbers over it: how many of the
// 15 thresholds lie below. Numbers are multiplied by the reciprocal of the scale, those of a last shorter block divided
// by it, as bitsandbytes does on a CPU.
void quantize_4_bits(const float* x, int64_t n, int64_t block, const float* thresholds, uint8_t* codes, float* scales);

// For each block the largest size into `scales`, and of each number the code whose entry in the ascending `map` is
// nearest to it over the scale; in the middle the lower one.
void quantize_by_map(const float* x, int64_t n, int64_t block, const float* map, uint8_t* codes, float* scales);

// Rows of 8-bit integers: the largest size of a row into `scales`, and 127ths of it, rounded to even.
void quantize_int8(const float* x, int64_t rows, int64_t columns, int8_t* codes, float* scales);

// Rows of 8-bit floats e4m3: a row's largest size over 448 into `scales`, and the numbers over it, rounded to even.
void quantize_fp8(const float* x, int64_t rows, int64_t columns, uint8_t* codes, float* scales);

}  // namespace plimsoll::cpu
