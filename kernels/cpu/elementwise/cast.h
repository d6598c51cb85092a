#pragma once

// Conversions between element types: floats round to nearest even, floats to integers truncate,
// anything but zero is true.

#include "kernels/scalar.h"

namespace plimsoll::cpu {

// Of every type but F8 and U64.
void cast_elements(void* to, Scalar to_type, const void* from, Scalar from_type, int64_t n);

// Rounds to bf16 or f16 and back.
void round_floats(Scalar type, float* x, int64_t n);

}  // namespace plimsoll::cpu
