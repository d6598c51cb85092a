#pragma once

#include <cstdint>

namespace plimsoll::cuda {

// n / divisor for 0 <= n < 2^31 by a multiplication and a shift (Granlund and Montgomery 1994): with
// 2^shift < divisor <= 2^(shift+1) and magic = ceil(2^(32+shift) / divisor), the rounding of magic adds less than
// 1 / divisor to the quotient. A divisor of 0 stands for an empty dimension, where nothing is divided. Of 1 there is no
// such shift: a choice takes no longer than a doubled n would, and fewer registers.
class Divider32 {
 public:
  Divider32() = default;
  constexpr explicit Divider32(int32_t divisor) : divisor_(divisor > 0 ? static_cast<uint32_t>(divisor) : 1) {
    if (divisor_ == 1) return;
    while ((uint64_t{2} << shift_) < divisor_) ++shift_;
    magic_ = static_cast<uint32_t>(((uint64_t{1} << (32 + shift_)) + divisor_ - 1) / divisor_);
  }

  constexpr int32_t quotient(int32_t n) const {
    const uint64_t product = uint64_t{static_cast<uint32_t>(n)} * magic_;
    return divisor_ == 1 ? n : static_cast<int32_t>(static_cast<uint32_t>(product >> 32) >> shift_);
  }
  // Rounds up; n <= 2^31 - divisor.
  constexpr int32_t quotient_up(int32_t n) const { return quotient(n + static_cast<int32_t>(divisor_) - 1); }
  // Divides n; n becomes the remainder.
  constexpr int32_t divide(int32_t& n) const {
    const int32_t result = quotient(n);
    n -= result * static_cast<int32_t>(divisor_);
    return result;
  }

 private:
  uint32_t divisor_ = 1, magic_ = 0, shift_ = 0;
};

}  // namespace plimsoll::cuda
