#pragma once

// Conversions between element types: floats round to nearest even, floats to integers truncate,
// anything but zero is true.

#include <cstdint>

namespace plimsoll::cpu {

enum class Element : uint8_t { F64, F32, BF16, F16, I64, I32, I16, I8, U32, U16, U8, Bool };

void cast_elements(void* to, Element to_type, const void* from, Element from_type, int64_t n);

}  // namespace plimsoll::cpu
