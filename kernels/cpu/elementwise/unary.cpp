#include "kernels/cpu/elementwise/unary.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/vector_math.h"

#include <cmath>

// One line a function. The loops vectorise because every expression is branch-free float arithmetic; those
// that call the C library (trigonometry: rotary tables, not training loops) run one element at a time.

namespace plimsoll::cpu {

#define UNARY(name, expression)                                                                  \
  PLIMSOLL_VECTORISED void name##_range(float* y, const float* x, int64_t n, float a, float b) { \
    static_cast<void>(a), static_cast<void>(b);                                                  \
    _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) {                                        \
      const float v = x[i];                                                                      \
      y[i] = expression;                                                                         \
    }                                                                                            \
  }
#define UNARY_LIBRARY(name)                                              \
  void name##_range(float* y, const float* x, int64_t n, float, float) { \
    for (int64_t i = 0; i < n; ++i) y[i] = std::name(x[i]);              \
  }

PLIMSOLL_INLINE float positive_part(float v) { return v > 0.0f ? v : (v != v ? v : 0.0f); }
PLIMSOLL_INLINE float clamp(float v, float low, float high) { return v < low ? low : (v > high ? high : v); }

constexpr float root_half = 0.70710678f, root_two_over_pi = 0.79788456f, inverse_root_two_pi = 0.39894228f;

PLIMSOLL_INLINE float gelu(float v) { return 0.5f * v * (1.0f + vector_erf(v * root_half)); }

// gelu's derivative: Phi(v) + v phi(v).
PLIMSOLL_INLINE float gelu_slope(float v) {
  return 0.5f * (1.0f + vector_erf(v * root_half)) + v * inverse_root_two_pi * vector_exp(-0.5f * v * v);
}

PLIMSOLL_INLINE float gelu_tanh(float v) {
  return 0.5f * v * (1.0f + vector_tanh(root_two_over_pi * (v + 0.044715f * v * v * v)));
}

PLIMSOLL_INLINE float gelu_tanh_slope(float v) {
  const float t = vector_tanh(root_two_over_pi * (v + 0.044715f * v * v * v));
  const float inner_slope = root_two_over_pi * (1.0f + 3.0f * 0.044715f * v * v);
  return 0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * inner_slope;
}

PLIMSOLL_INLINE float silu_slope(float v) {
  const float s = vector_sigmoid(v);
  return s * (1.0f + v * (1.0f - s));
}

UNARY(neg, -v)
UNARY(abs, std::fabs(v))
UNARY(sign, v > 0.0f ? 1.0f : (v < 0.0f ? -1.0f : v))
UNARY(exp, vector_exp(v))
UNARY(log, vector_log(v))
UNARY(sqrt, std::sqrt(v))
UNARY(rsqrt, 1.0f / std::sqrt(v))
UNARY(reciprocal, 1.0f / v)
UNARY(tanh, vector_tanh(v))
UNARY(erf, vector_erf(v))
UNARY(floor, std::floor(v))
UNARY(ceil, std::ceil(v))
UNARY(round, std::nearbyint(v))
UNARY(relu, positive_part(v))
UNARY(sigmoid, vector_sigmoid(v))
UNARY(silu, v* vector_sigmoid(v))
UNARY(softplus, vector_softplus(v))
UNARY(softsign, v / (1.0f + std::fabs(v)))
UNARY(mish, v* vector_tanh(vector_softplus(v)))
UNARY(gelu, gelu(v))
UNARY(gelu_tanh, gelu_tanh(v))
UNARY(elu, v > 0.0f ? v : a * vector_expm1(v))
UNARY(celu, v > 0.0f ? v : a * vector_expm1(v / a))
UNARY(selu, b*(v > 0.0f ? v : a * vector_expm1(v)))
UNARY(leaky_relu, v >= 0.0f ? v : a * v)
UNARY(hard_sigmoid, clamp(a* v + b, 0.0f, 1.0f))
UNARY(hard_swish, v* clamp(v*(1.0f / 6.0f) + 0.5f, 0.0f, 1.0f))
UNARY(thresholded_relu, v > a ? v : 0.0f)
UNARY(shrink, v < -b ? v + a : (v > b ? v - a : 0.0f))
UNARY(clip, clamp(v, a, b))

UNARY_LIBRARY(sin)
UNARY_LIBRARY(cos)
UNARY_LIBRARY(tan)
UNARY_LIBRARY(asin)
UNARY_LIBRARY(acos)
UNARY_LIBRARY(atan)
UNARY_LIBRARY(sinh)
UNARY_LIBRARY(cosh)
UNARY_LIBRARY(asinh)
UNARY_LIBRARY(acosh)
UNARY_LIBRARY(atanh)

#define UNARY_GRAD(name, expression)                                                                \
  PLIMSOLL_VECTORISED void name##_range(float* dx, const float* kept, const float* dy, int64_t n) { \
    _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) {                                           \
      const float v = kept[i], d = dy[i];                                                           \
      dx[i] = expression;                                                                           \
    }                                                                                               \
  }

UNARY_GRAD(relu_grad, v > 0.0f ? d : 0.0f)
UNARY_GRAD(sigmoid_grad, d* v*(1.0f - v))
UNARY_GRAD(tanh_grad, d*(1.0f - v * v))
UNARY_GRAD(silu_grad, d* silu_slope(v))
UNARY_GRAD(gelu_grad, d* gelu_slope(v))
UNARY_GRAD(gelu_tanh_grad, d* gelu_tanh_slope(v))

void map_unary(UnaryRange* range, float* y, const float* x, int64_t n, float a, float b) {
  parallel_ranges(n, 4, [&](int64_t begin, int64_t end) { range(y + begin, x + begin, end - begin, a, b); });
}

void map_unary_grad(UnaryGradRange* range, float* dx, const float* kept, const float* dy, int64_t n) {
  parallel_ranges(n, 4, [&](int64_t begin, int64_t end) { range(dx + begin, kept + begin, dy + begin, end - begin); });
}

}  // namespace plimsoll::cpu
