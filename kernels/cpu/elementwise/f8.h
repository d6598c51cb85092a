#pragma once

// 8-bit floats with one scale for a whole tensor.

#include "kernels/scalar.h"

#include <cstdint>

namespace plimsoll::cpu {

// The smallest power of two, from 2^-126 on, that brings the n numbers within codes of that type when they are divided
// by it; 1 where all are zero, NaN where one is not finite.
float f8_scale(const float* x, int64_t n, Scalar codes);

// Codes of x [rows, columns] over the scale, a power of two: as x lies, and its transpose. Either may be null.
void to_f8(const float* x, int64_t rows, int64_t columns, float scale, Scalar type, uint8_t* codes, uint8_t* turned);

// y = values[code] * scale
void from_f8(const uint8_t* codes, int64_t n, const float* values, float scale, float* y);

}  // namespace plimsoll::cpu
