#pragma once

// Codes of the dynamic 8-bit maps (ir/quantized_numbers.h): found by arithmetic, as the CPU does, and by a table of the
// bits of a number, as the GPU does.

#include <bit>
#include <cstdint>

#if defined(__GNUC__)
#define PLIMSOLL_ALWAYS_INLINE __attribute__((always_inline)) inline
#else
#define PLIMSOLL_ALWAYS_INLINE inline
#endif

namespace plimsoll {

// A decade of the map has twice as many numbers as the one below it, evenly spaced, so within a decade the code is a
// line over the number. Lines become flatter from decade to decade and meet at the powers of ten, so the least of all
// seven is the code's place. Codes change at whole numbers of it; at a power of ten 0.2 above one.
inline constexpr int code_decades = 7;

struct CodeLine {
  float slope, start;
};

template <bool is_signed, int decade>
PLIMSOLL_ALWAYS_INLINE constexpr CodeLine code_line() {
  constexpr float powers[] = {1e6F, 1e5F, 1e4F, 1e3F, 1e2F, 1e1F, 1.0F};
  constexpr auto numbers = static_cast<float>(1 << (is_signed ? decade : decade + 1));
  return {powers[decade] * numbers / 0.9F, (is_signed ? 127.0F : -1.0F) + numbers - numbers / 9.0F};
}

template <bool is_signed, int decade = code_decades - 1>
PLIMSOLL_ALWAYS_INLINE constexpr float code_place(float size) {
  constexpr CodeLine of_decade = code_line<is_signed, decade>();
  const float line = of_decade.slope * size + of_decade.start;
  if constexpr (decade == 0) {
    return line;
  } else {
    const float below = code_place<is_signed, decade - 1>(size);
    return below < line ? below : line;
  }
}

// The nearest code of a share of the scale, which lies between -1 and 1; that of NaN is any. `thresholds` has 256
// entries: the first number of each code but code 0, then infinity.
template <bool is_signed>
PLIMSOLL_ALWAYS_INLINE constexpr int dynamic_code(float share, const float* thresholds) {
  const bool is_negative = is_signed && share < 0;
  const float place = code_place<is_signed>(is_negative ? -share : share);
  // A quarter below its place a number has its own code or the one before it, whatever rounding did to the place.
  int code = place > 0.25F ? static_cast<int>(place - 0.25F) : 0;
  if (is_negative) code = code < 254 ? 253 - code : 0;  // codes of opposite numbers add up to 254; -1 has none
  return code + (share >= thresholds[code] ? 1 : 0);
}

// The code of a share by one look at a table. The key of a number is its bits, all of them inverted where it is
// negative, so that among numbers of one sign keys grow with the number. Keys with the same upper bits are a bin, and
// bins are so narrow that none has more than one threshold. A bin's entry plus a key in the bin has the code in its
// highest byte: from the threshold on the sum carries into that byte.
template <bool is_signed>
struct CodeBins {
  static constexpr int shift = is_signed ? 17 : 16;  // keeps the exponent and 6 or 7 bits behind it
  static constexpr int count = 4096;
  // Smaller numbers have the code of 0. From here to 1 the exponents' higher bits are the same.
  static constexpr float least = is_signed ? 0x1p-22F : 0x1p-23F;

  static PLIMSOLL_ALWAYS_INLINE constexpr uint32_t key(float share) {
    const auto bits = std::bit_cast<uint32_t>(share);
    const float any_size = is_signed ? __builtin_fabsf(share) : share;
    const float size = any_size > least ? any_size : least;  // also of NaN
    const uint32_t inverted = is_signed ? static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) : 0;
    return std::bit_cast<uint32_t>(size) ^ inverted;
  }
  static PLIMSOLL_ALWAYS_INLINE constexpr uint32_t bin(uint32_t key) { return key >> shift & (count - 1); }
  static PLIMSOLL_ALWAYS_INLINE constexpr int code(uint32_t entry, uint32_t key) {
    return static_cast<int>((entry + key) >> 24);
  }

  // Thresholds are those of dynamic_code. Entries of bins that no number is in are any.
  static constexpr uint32_t entry(uint32_t bin, const float* thresholds) {
    // A bin has the lowest 12 bits of a key's upper part. The others of numbers from `least` to 1 are 011 without a
    // sign and, with one, 001 or 110, which differ from the highest bit of the bin.
    const bool is_negative = is_signed && bin < count / 2;
    const uint32_t above = !is_signed ? 3 : is_negative ? 6 : 1, first = (above << 12 | bin) << shift;
    const auto lowest = is_negative ? -std::bit_cast<float>(~first) : std::bit_cast<float>(first);
    const int code = dynamic_code<is_signed>(lowest < 1 ? lowest : 1.0F, thresholds);
    const float threshold = thresholds[code];
    const uint32_t above_lowest = key(threshold) - first;
    const bool has_threshold = (threshold < 0) == is_negative && above_lowest >> shift == 0;
    return (static_cast<uint32_t>(code) << 24) + (has_threshold ? (1U << 24) - above_lowest : 0) - first;
  }
};

}  // namespace plimsoll
