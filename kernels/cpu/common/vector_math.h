#pragma once

// Elementary functions that vectorise: straight-line float arithmetic, no tables, no branches, within
// about 2 ulp. Polynomials are weighted minimax fits (Lawson 1961) on the ranges stated; arguments are
// reduced as in Cody and Waite (1980).

#include "kernels/cpu/common/vectorised.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace plimsoll::cpu {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

PLIMSOLL_INLINE float float_of(int32_t bits) { return std::bit_cast<float>(bits); }
PLIMSOLL_INLINE int32_t bits_of(float value) { return std::bit_cast<int32_t>(value); }

// (e^r - 1 - r) / r^2 for |r| <= ln(2)/2.
PLIMSOLL_INLINE float exp_tail(float r) {
  float p = 0.00139421489f;
  p = p * r + 0.00836377615f;
  p = p * r + 0.0416663636f;
  p = p * r + 0.166665734f;
  return p * r + 0.500000003f;
}

PLIMSOLL_INLINE float vector_exp(float x) {
  // Beyond these bounds the result is 0 or infinity; inside, 2^n is applied in two factors so that neither
  // over- nor underflows. NaN fails both comparisons and passes through.
  const float clamped = x > 89.0f ? 89.0f : (x < -104.0f ? -104.0f : x);
  constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float shifted = clamped * 1.44269504f + round_magic;
  const float n = shifted - round_magic;
  const int32_t exponent = bits_of(shifted) - bits_of(round_magic);
  const float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  const float y = exp_tail(r) * (r * r) + r + 1.0f;
  const int32_t half = exponent >> 1;
  return y * float_of((half + 127) << 23) * float_of((exponent - half + 127) << 23);
}

PLIMSOLL_INLINE float vector_expm1(float x) {
  const float near = exp_tail(x) * (x * x) + x;
  const float far = vector_exp(x) - 1.0f;
  return std::fabs(x) < 0.34f ? near : far;
}

// (log(1 + f) - f + f^2/2) / f^3 for 1 + f in [sqrt(1/2), sqrt(2)].
PLIMSOLL_INLINE float log_tail(float f) {
  float p = 0.0674648997f;
  p = p * f - 0.116756154f;
  p = p * f + 0.118882118f;
  p = p * f - 0.124055979f;
  p = p * f + 0.142195464f;
  p = p * f - 0.166679952f;
  p = p * f + 0.20002119f;
  p = p * f - 0.250000096f;
  return p * f + 0.333333126f;
}

PLIMSOLL_INLINE float vector_log(float x) {
  const bool subnormal = x < std::numeric_limits<float>::min();
  const float scaled = subnormal ? x * 8388608.0f : x;
  const int32_t exponent = (bits_of(scaled) - bits_of(0.707106769f)) >> 23;
  const float f = float_of(bits_of(scaled) - exponent * (1 << 23)) - 1.0f;
  const float e = static_cast<float>(exponent) - (subnormal ? 23.0f : 0.0f);
  const float square = f * f;
  const float low = log_tail(f) * (square * f) - 0.5f * square + e * 1.42860677e-6f;
  float y = (low + f) + e * 0.693145752f;
  y = x == 0.0f ? -infinity : y;
  y = x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : y;
  return (x == infinity || x != x) ? x : y;
}

// log(1 + u) for u >= 0; what rounding 1 + u loses is put back to first order.
PLIMSOLL_INLINE float vector_log1p(float u) {
  const float w = 1.0f + u;
  const float lost = u - (w - 1.0f);
  return vector_log(w) + lost / w;
}

PLIMSOLL_INLINE float vector_tanh(float x) {
  const float z = x * x;
  float p = -0.00560387874f;
  p = p * z + 0.0205516833f;
  p = p * z - 0.0537140944f;
  p = p * z + 0.133311526f;
  p = p * z - 0.333332721f;
  const float near = p * z * x + x;
  const float magnitude = std::fabs(x);
  const float far = 1.0f - 2.0f / (vector_exp(2.0f * magnitude) + 1.0f);
  return magnitude < 0.625f ? near : std::copysign(far, x);
}

PLIMSOLL_INLINE float vector_erf(float x) {
  const float z = x * x;
  float near = -0.000591940814f;
  near = near * z + 0.00497912822f;
  near = near * z - 0.0267570333f;
  near = near * z + 0.112815524f;
  near = near * z - 0.376124686f;
  near = near * z + 0.128379146f;
  near = near * x + x;
  // erfc(t) = exp(-t P(t)); past 4 erf is 1 in float.
  const float magnitude = std::fabs(x);
  const float t = magnitude > 4.0f ? 4.0f : magnitude;
  float p = 4.80632764e-06f;
  p = p * t - 4.39981828e-05f;
  p = p * t - 5.75219861e-05f;
  p = p * t + 0.00295169585f;
  p = p * t - 0.0227083365f;
  p = p * t + 0.10529448f;
  p = p * t + 0.635609257f;
  p = p * t + 1.12855513f;
  const float far = std::copysign(1.0f - vector_exp(-t * p), x);
  const float y = magnitude < 0.93f ? near : far;
  return x != x ? x : y;
}

PLIMSOLL_INLINE float vector_sigmoid(float x) {
  const float e = vector_exp(-std::fabs(x));
  const float y = 1.0f / (1.0f + e);
  return x >= 0.0f ? y : (x != x ? x : e * y);
}

// log(1 + e^x) without overflow.
PLIMSOLL_INLINE float vector_softplus(float x) {
  return (x > 0.0f ? x : 0.0f) + vector_log1p(vector_exp(-std::fabs(x)));
}

}  // namespace plimsoll::cpu
