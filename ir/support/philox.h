#pragma once

// The counter-based random generator behind dropout and random_*: Philox4x32-10 (Salmon et al. 2011). An
// element's numbers depend on the seed, the step, the node's id and the element's index alone, so that a
// recomputed or split node draws the same ones.

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace plimsoll {

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock philox(PhiloxBlock counter, uint32_t key_low, uint32_t key_high) {
  for (int round = 0; round < 10; ++round) {
    uint64_t first = uint64_t{0xD2511F53} * counter[0];
    uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key_low, static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key_high, static_cast<uint32_t>(first)};
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  return counter;
}

// The stream of one node in one step, or from its draw `first` on, a multiple of 4: element i takes lane i % 4 of block
// (first + i) / 4.
struct RandomStream {
  int64_t seed, step, id, first = 0;

  PhiloxBlock block(int64_t index) const {
    auto at = static_cast<uint64_t>(first / 4 + index), key = static_cast<uint64_t>(seed);
    return philox({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), static_cast<uint32_t>(step),
                   static_cast<uint32_t>(id)},
                  static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
  }

  // Uniform in [0, 1).
  double uniform(int64_t element) const { return block(element / 4)[element % 4] * 0x1p-32; }

  // Uniform in [0, 1) in steps of 2^-16, for a decision per element at half the cost: of the 16-bit halves of all
  // blocks in a row, lower halves first, the one at first + element.
  double uniform_16(int64_t element) const {
    const int64_t half = first + element;
    const uint32_t word = RandomStream{seed, step, id}.block(half / 8)[half % 8 / 2];
    return (word >> half % 2 * 16 & 0xffff) * 0x1p-16;
  }

  // Standard normal by Box and Muller (1958): lanes 0 and 1 make one pair, lanes 2 and 3 the other.
  double normal(int64_t element) const {
    const PhiloxBlock bits = block(element / 4);
    const int64_t pair = element % 4 / 2 * 2;
    return normal_pair(bits[pair], bits[pair + 1])[element % 2];
  }
  // Elements 4 * index to 4 * index + 3, in less than half the time that they take one by one.
  std::array<double, 4> normals(int64_t index) const {
    const PhiloxBlock bits = block(index);
    const auto [a, b] = normal_pair(bits[0], bits[1]);
    const auto [c, d] = normal_pair(bits[2], bits[3]);
    return {a, b, c, d};
  }

 private:
  static std::array<double, 2> normal_pair(uint32_t radius_bits, uint32_t angle_bits) {
    const double radius = std::sqrt(-2 * std::log((radius_bits + 1.0) * 0x1p-32)),
                 angle = 2 * std::numbers::pi * angle_bits * 0x1p-32;
    return {radius * std::cos(angle), radius * std::sin(angle)};
  }
};

}  // namespace plimsoll
