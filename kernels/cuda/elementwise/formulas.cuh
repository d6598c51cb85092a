#pragma once

// What the formulas of kernels/elementwise.def call on a GPU. Generated kernels are compiled with this text as well, by
// NVRTC and without any header, so it includes none.

namespace plimsoll::cuda {

// One instruction each, within 2 bits of the last place; numbers below 2^-126 count as 0. Other kernels have theirs in
// headers, which this text cannot include.
__device__ inline float quick_power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
__device__ inline float quick_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// exp(-x) overflows to infinity below x = -88, whose reciprocal is the right 0.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
__device__ inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }

template <typename C>
__device__ C softplus(C x) {
  return fmax(x, C(0)) + log1p(exp(-fabs(x)));
}

template <typename C>
__device__ C clamp(C x, C low, C high) {
  if (x < low) x = low;
  return x > high ? high : x;
}

// The tanh form of gelu (Hendrycks and Gimpel 2016) is x * sigmoid(gelu_argument(x)): (1 + tanh(u)) / 2 = sigmoid(2u).
template <typename C>
__device__ C gelu_argument(C x) {
  return C(1.5957691216057308) * (x + C(0.044715) * x * x * x);
}

template <typename C>
__device__ C normal_distribution(C x) {
  return C(0.5) * (1 + erf(x * C(0.7071067811865476)));
}

// The standard normal distribution and its density at x, for slopes of 16 bits: below 0 the distribution is
// exp(-x^2 / 2) times a polynomial in t = 1 / (1 + 0.36 |x|) (the form of Hastings 1955), fitted to an error of
// 1e-6 of its value, in the tail as well. With erff, gelu of bf16 stays at 2.7 TB/s on an H200 that copies 4.2.
struct NormalLaw {
  float distribution, density;
};
__device__ inline NormalLaw normal_law(float x) {
  constexpr float half_log2_e = 0.72134752f;
  const float t = quick_reciprocal(1.0f + 0.36f * fabsf(x)), exponential = quick_power_of_2(-half_log2_e * (x * x));
  constexpr float coefficients[] = {-0.179773854f, 0.180966553f, 0.0265407174f,
                                    0.139722366f,  0.141771901f, 0.143713083f};
  float sum = 0.0470589285f;
  for (float c : coefficients) sum = sum * t + c;
  const float tail = sum * t * exponential;
  return {x < 0 ? tail : 1 - tail, 0.398942280f * exponential};
}

// min(x, most), and x where that is not a number.
__device__ inline float at_most(float x, float most) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(most));
  return y;
}

// Both forms of gelu and their slopes, for results of 16 bits. The exact form is max(x, 0) less what |x| has of its
// tail, the distribution at -|x|. That is 2 to the power of a polynomial, fitted to an error of 3e-5 of its value up to
// |x| = 5.7 and of 1e-3 up to 9; at 16 it is 0 in f32.
__device__ inline float narrow_gelu(float x) {
  constexpr float coefficients[] = {4.95220265e-05f, -0.000822639675f, 0.0080297254f, -0.0528690666f,
                                    -0.459659308f,   -1.15074944f,     -1.00003242f};
  const float u = at_most(fabsf(x), 16.0f);
  float power = -1.30411831e-06f;
  for (float c : coefficients) power = power * u + c;
  return fmaxf(x, 0.0f) - u * quick_power_of_2(power);
}
__device__ inline float narrow_gelu_tanh(float x) {
  constexpr float scale = 1.5957691216057308f, cubic = 0.044715f, log2_e = 1.4426950408889634f;
  return x * quick_reciprocal(1 + quick_power_of_2(x * (-log2_e * scale - log2_e * scale * cubic * (x * x))));
}
__device__ inline float narrow_gelu_slope(float x) {
  const NormalLaw law = normal_law(x);
  return law.distribution + x * law.density;
}
__device__ inline float narrow_gelu_tanh_slope(float x) {
  constexpr float scale = 1.5957691216057308f, cubic = 0.044715f, log2_e = 1.4426950408889634f;
  const float square = x * x;
  const float s = quick_reciprocal(1 + quick_power_of_2(x * (-log2_e * scale - log2_e * scale * cubic * square)));
  return s + (s - s * s) * (x * (scale + 3 * scale * cubic * square));
}

// Sines and cosines for results of 16 bits: x less the nearest multiple of pi, or of pi and a half, and a polynomial
// of that in turn with either sign, within 1.3e-6 of its value for every such x up to 32768. Larger ones are the
// library's, which stay out of the kernel's code: eight elements with them took 70 KB of it.
template <bool is_cosine>
__device__ __noinline__ float sine_of_large(float x) {
  return is_cosine ? cosf(x) : sinf(x);
}
template <bool is_cosine>
__device__ float narrow_sine(float x) {
  constexpr float most = 32768, reciprocal_pi = 0.318309886f, pi = 3.14159274f, rest_of_pi = -8.74227766e-08f;
  constexpr float to_whole = 12582912;  // 1.5 * 2^23: sums with it are whole numbers, odd in their last bit
  if (!(fabsf(x) <= most)) return sine_of_large<is_cosine>(x);
  const float away = is_cosine ? 0.5f : 0.0f, shifted = fmaf(x, reciprocal_pi, -away) + to_whole;
  const float multiple = shifted - to_whole + away;
  const float angle = fmaf(-multiple, rest_of_pi, fmaf(-multiple, pi, x)), square = angle * angle;
  const float sum = fmaf(fmaf(-0.000185422105f, square, 0.00831427425f), square, -0.166658536f) * square;
  const unsigned sign = (__float_as_uint(shifted) + is_cosine) << 31;
  return __uint_as_float(__float_as_uint(fmaf(sum, angle, angle)) ^ sign);
}
__device__ inline float narrow_sin(float x) { return narrow_sine<false>(x); }
__device__ inline float narrow_cos(float x) { return narrow_sine<true>(x); }

template <typename C>
__device__ C gelu(C x) {
  return x * normal_distribution(x);
}

template <typename C>
__device__ C gelu_tanh(C x) {
  return x * sigmoid(gelu_argument(x));
}

template <typename C>
__device__ C sign(C x) {
  return C((x > 0) - (x < 0));
}

template <typename C>
__device__ C relu(C x) {
  return x < 0 ? C(0) : x;
}

template <typename C>
__device__ C leaky_relu(C x, C alpha) {
  return x > 0 ? x : alpha * x;
}

template <typename C>
__device__ C sixth_of(C x) {
  return x / 6;
}

template <typename C>
__device__ C sigmoid_grad(C y, C dy) {
  return dy * (y * (1 - y));
}

template <typename C>
__device__ C silu_slope(C x) {
  const C s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

template <typename C>
__device__ C gelu_slope(C x) {
  return normal_distribution(x) + x * C(0.3989422804014327) * exp(C(-0.5) * x * x);
}

template <typename C>
__device__ C gelu_tanh_slope(C x) {
  const C s = sigmoid(gelu_argument(x));
  return s + x * s * (1 - s) * C(1.5957691216057308) * (1 + C(3 * 0.044715) * x * x);
}

template <typename C>
__device__ C floor_mod(C a, C b) {
  const C rest = fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

}  // namespace plimsoll::cuda
