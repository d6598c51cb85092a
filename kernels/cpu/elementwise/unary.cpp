#include "kernels/cpu/elementwise/unary.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/vector_math.h"

#include <cmath>

// The formulas of kernels/elementwise.def as loops, which vectorise because every expression is branch-free float
// arithmetic. Those that call the C library (trigonometry: rotary tables, not training loops) run one element at a
// time.

namespace plimsoll::cpu {
namespace {

using C = float;
using std::ceil, std::fabs, std::floor, std::sqrt;

PLIMSOLL_INLINE float exp(float x) { return vector_exp(x); }
PLIMSOLL_INLINE float expm1(float x) { return vector_expm1(x); }
PLIMSOLL_INLINE float log(float x) { return vector_log(x); }
PLIMSOLL_INLINE float tanh(float x) { return vector_tanh(x); }
PLIMSOLL_INLINE float erf(float x) { return vector_erf(x); }
PLIMSOLL_INLINE float sigmoid(float x) { return vector_sigmoid(x); }
PLIMSOLL_INLINE float softplus(float x) { return vector_softplus(x); }
PLIMSOLL_INLINE float rint(float x) { return std::nearbyint(x); }
PLIMSOLL_INLINE float sign(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : x); }
PLIMSOLL_INLINE float relu(float x) { return x > 0.0f ? x : (x != x ? x : 0.0f); }
PLIMSOLL_INLINE float leaky_relu(float x, float alpha) { return x >= 0.0f ? x : alpha * x; }
PLIMSOLL_INLINE float clamp(float x, float low, float high) { return x < low ? low : (x > high ? high : x); }
PLIMSOLL_INLINE float sixth_of(float x) { return x * (1.0f / 6.0f); }

constexpr float root_half = 0.70710678f, root_two_over_pi = 0.79788456f, inverse_root_two_pi = 0.39894228f;

PLIMSOLL_INLINE float gelu(float x) { return 0.5f * x * (1.0f + erf(x * root_half)); }

// gelu's derivative: Phi(x) + x phi(x).
PLIMSOLL_INLINE float gelu_slope(float x) {
  return 0.5f * (1.0f + erf(x * root_half)) + x * inverse_root_two_pi * exp(-0.5f * x * x);
}

PLIMSOLL_INLINE float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanh(root_two_over_pi * (x + 0.044715f * x * x * x)));
}

PLIMSOLL_INLINE float gelu_tanh_slope(float x) {
  const float t = tanh(root_two_over_pi * (x + 0.044715f * x * x * x));
  const float inner_slope = root_two_over_pi * (1.0f + 3.0f * 0.044715f * x * x);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner_slope;
}

PLIMSOLL_INLINE float silu_slope(float x) {
  const float s = sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}

PLIMSOLL_INLINE float sigmoid_grad(float y, float dy) { return dy * y * (1.0f - y); }

}  // namespace

#define PLIMSOLL_UNARY(op, Name, formula)                                                          \
  PLIMSOLL_VECTORISED void op##_range(float* to, const float* from, int64_t n, float a, float b) { \
    static_cast<void>(a), static_cast<void>(b);                                                    \
    _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) {                                          \
      const float x = from[i];                                                                     \
      to[i] = formula;                                                                             \
    }                                                                                              \
  }
#define PLIMSOLL_UNARY_FORM(form, Name, formula) PLIMSOLL_UNARY(form, Name, formula)
#define PLIMSOLL_UNARY_LIBRARY(op, Name)                               \
  void op##_range(float* y, const float* x, int64_t n, float, float) { \
    for (int64_t i = 0; i < n; ++i) y[i] = std::op(x[i]);              \
  }
#define PLIMSOLL_UNARY_GRAD(op, Name, formula)                                                       \
  PLIMSOLL_VECTORISED void op##_range(float* dx, const float* kept, const float* grads, int64_t n) { \
    _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) {                                            \
      const float x = kept[i], dy = grads[i];                                                        \
      dx[i] = formula;                                                                               \
    }                                                                                                \
  }
#define PLIMSOLL_UNARY_GRAD_FORM(form, Name, formula) PLIMSOLL_UNARY_GRAD(form, Name, formula)
#include "kernels/elementwise.def"

void map_unary(UnaryRange* range, float* y, const float* x, int64_t n, float a, float b) {
  parallel_ranges(n, 4, [&](int64_t begin, int64_t end) { range(y + begin, x + begin, end - begin, a, b); });
}

void map_unary_grad(UnaryGradRange* range, float* dx, const float* kept, const float* dy, int64_t n) {
  parallel_ranges(n, 4, [&](int64_t begin, int64_t end) { range(dx + begin, kept + begin, dy + begin, end - begin); });
}

}  // namespace plimsoll::cpu
