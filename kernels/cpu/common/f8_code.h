#pragma once

// Codes of 8-bit floats by arithmetic on the bits of an f32 number.

#include "kernels/cpu/common/vectorised.h"

#include <bit>

namespace plimsoll::cpu {

// Rounded to even; NaN is 0x7f. The number must not lie behind the largest code. Adding a large number rounds those
// below the smallest normal one to its multiples; of the others the bits behind the mantissa's last are rounded off.
template <int mantissa_bits, int bias>
PLIMSOLL_INLINE uint8_t f8_code(float x) {
  constexpr float smallest_normal = std::bit_cast<float>(static_cast<uint32_t>(128 - bias) << 23);
  // Its last bit is that of the smallest code.
  constexpr float to_multiples = std::bit_cast<float>(static_cast<uint32_t>(127 + 24 - bias - mantissa_bits) << 23);
  constexpr int cut = 23 - mantissa_bits;
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
  const float magnitude = std::bit_cast<float>(size);
  const uint32_t rounded = size + (1U << (cut - 1)) - 1 + (size >> cut & 1);
  const uint32_t normal = (rounded >> cut) - ((127 - bias) << mantissa_bits);
  const uint32_t small = std::bit_cast<uint32_t>(magnitude + to_multiples) & 0xff;
  const uint32_t code = sign | (magnitude < smallest_normal ? small : normal);
  return static_cast<uint8_t>(size > 0x7f800000 ? 0x7f : code);
}

}  // namespace plimsoll::cpu
