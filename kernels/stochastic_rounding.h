#pragma once

// Rounding to bf16 that is right on average: up with the probability of what is cut off. The rule is that of
// ir/ops/update/update_call.h.

#include <cstdint>

namespace plimsoll {

// The bits of an f32 number that bf16 holds exactly. Infinities and NaN stay as they are. Numbers are rounded away from
// zero where the upper half of `word` and the lower half of the bits add up to more than a half has room for.
constexpr uint32_t stochastically_rounded(uint32_t bits, uint32_t word) {
  return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + (word >> 16)) & 0xffff0000;
}

}  // namespace plimsoll
