#pragma once

#include <cstdint>

namespace plimsoll {

// The same numbers on every machine: Vigna's splitmix64 (2015).
class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(0x9E3779B97F4A7C15ull + seed) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  int32_t below(int32_t n) { return static_cast<int32_t>((bits() >> 32) * static_cast<uint64_t>(n) >> 32); }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  bool coin() { return below(2) == 0; }

 private:
  uint64_t state_;
};

}  // namespace plimsoll
