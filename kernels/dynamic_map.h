#pragma once

// Codes of the dynamic 8-bit maps (ir/quantized_numbers.h) found by arithmetic: lines for the kernels of both backends,
// and the code as the CPU's finds it.

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

}  // namespace plimsoll
