#pragma once

// The counter-based random generator behind dropout and random_*: Philox4x32 (Salmon et al. 2011), with 10 rounds, or
// with 7 for dropout. An element's numbers depend on the seed, the step, the node's id and the element's index alone,
// so that a recomputed or split node draws the same ones.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace plimsoll {

using PhiloxBlock = std::array<uint32_t, 4>;

template <int rounds = 10>
PhiloxBlock philox(PhiloxBlock counter, uint32_t key_low, uint32_t key_high) {
  for (int round = 0; round < rounds; ++round) {
    uint64_t first = uint64_t{0xD2511F53} * counter[0];
    uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key_low, static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key_high, static_cast<uint32_t>(first)};
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  return counter;
}

// Dropout gives each element a number of `bits` bits, and drops those whose number is below `dropped`. The ratio is
// thus rounded. Of elements numbers have 16 bits, and eight neighbours share a block of Philox, two a lane, the first
// in the lower half. Of attention's probabilities they have 8 bits where these keep both the ratio and what is left of
// 1 within 2 %, else 16; 32 neighbouring columns of a row share the blocks, one bit position each, and a row begins
// with a block of its own.
struct DropoutRule {
  static constexpr int rounds = 7;  // 7 rounds pass all tests of BigCrush (Salmon et al. 2011)
  static constexpr int64_t elements_per_block = 8, columns_per_word = 32;

  int bits;
  uint32_t dropped;

  static DropoutRule of_elements(double ratio) {
    if (ratio <= 0 || ratio >= 1) return {16, ratio <= 0 ? 0u : 1u << 16};
    return {16, static_cast<uint32_t>(std::clamp(std::round(ratio * 0x1p16), 1.0, 0x1p16 - 1))};
  }
  static DropoutRule of_probabilities(double ratio) {
    if (ratio >= 1) return {8, 1 << 8};
    const double of_8_bits = std::round(ratio * 0x1p8);
    if (std::abs(of_8_bits * 0x1p-8 - ratio) <= 0.02 * std::min(ratio, 1 - ratio))
      return {8, static_cast<uint32_t>(of_8_bits)};
    return of_elements(ratio);
  }
  int blocks() const { return bits / 4; }  // of Philox for 32 columns
  double kept_share() const { return 1 - std::ldexp(dropped, -bits); }
  // What is kept is multiplied with this, so that the mean stays.
  double factor() const { return kept_share() > 0 ? 1 / kept_share() : 0; }
  // The numbers of a stream that a row takes.
  static int64_t draws_of_row(int64_t columns) {
    return (columns + columns_per_word - 1) / columns_per_word * columns_per_word;
  }
};

// The stream of one node in one step, or from its draw `first` on, a multiple of 4. Element i takes lane i % 4 of block
// (first + i) / 4, but for dropout.
struct RandomStream {
  int64_t seed, step, id, first = 0;

  PhiloxBlock block(int64_t index) const { return numbered<10>(first / 4 + index); }

  // Uniform in [0, 1).
  double uniform(int64_t element) const { return block(element / 4)[element % 4] * 0x1p-32; }

  // Whether dropout of elements keeps one.
  bool keeps(const DropoutRule& rule, int64_t element) const {
    const int64_t at = first + element, place = at % DropoutRule::elements_per_block;
    const PhiloxBlock lanes = numbered<DropoutRule::rounds>(at / DropoutRule::elements_per_block);
    return (lanes[static_cast<size_t>(place / 2)] >> 16 * (place % 2) & 0xffff) >= rule.dropped;
  }

  // Whether attention's dropout keeps an element of rows that have draws_of_row() numbers each; `first` is a multiple
  // of 32.
  bool keeps_probability(const DropoutRule& rule, int64_t element) const {
    const int64_t at = first + element, word = at / DropoutRule::columns_per_word;
    uint32_t number = 0;
    for (int i = 0; i < rule.blocks(); ++i) {
      const PhiloxBlock lanes = numbered<DropoutRule::rounds>(word * rule.blocks() + i);
      for (int lane = 0; lane < 4; ++lane)
        number |= (lanes[static_cast<size_t>(lane)] >> at % DropoutRule::columns_per_word & 1) << (4 * i + lane);
    }
    return number >= rule.dropped;
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
  template <int rounds>
  PhiloxBlock numbered(int64_t block) const {
    const auto at = static_cast<uint64_t>(block), key = static_cast<uint64_t>(seed);
    return philox<rounds>({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), static_cast<uint32_t>(step),
                           static_cast<uint32_t>(id)},
                          static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
  }

  static std::array<double, 2> normal_pair(uint32_t radius_bits, uint32_t angle_bits) {
    const double radius = std::sqrt(-2 * std::log((radius_bits + 1.0) * 0x1p-32)),
                 angle = 2 * std::numbers::pi * angle_bits * 0x1p-32;
    return {radius * std::cos(angle), radius * std::sin(angle)};
  }
};

}  // namespace plimsoll
