#include "kernels/cpu/elementwise/binary.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/vector_math.h"

#include <algorithm>
#include <cmath>

// Each function is written once and compiled for the four ways an innermost run can look: both operands
// advance, or one or both stand still.

namespace plimsoll::cpu {

#define BINARY_LOOP(first, second, expression)          \
  _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) { \
    const auto u = first;                               \
    const auto v = second;                              \
    y[i] = expression;                                  \
  }
#define BINARY(Out, In, name, expression)                                                                              \
  PLIMSOLL_VECTORISED void name##_range(Out* y, const In* a, const In* b, int64_t a_step, int64_t b_step, int64_t n) { \
    if (a_step && b_step) {                                                                                            \
      BINARY_LOOP(a[i], b[i], expression)                                                                              \
    } else if (a_step) {                                                                                               \
      const In still = *b;                                                                                             \
      BINARY_LOOP(a[i], still, expression)                                                                             \
    } else if (b_step) {                                                                                               \
      const In still = *a;                                                                                             \
      BINARY_LOOP(still, b[i], expression)                                                                             \
    } else {                                                                                                           \
      const In still = *a, other = *b;                                                                                 \
      BINARY_LOOP(still, other, expression)                                                                            \
    }                                                                                                                  \
  }

// Python's and ONNX's modulus: the sign of the divisor.
PLIMSOLL_INLINE float floor_mod(float u, float v) {
  const float r = std::fmod(u, v);
  return r != 0.0f && (r < 0.0f) != (v < 0.0f) ? r + v : r;
}

BINARY(float, float, add, u + v)
BINARY(float, float, sub, u - v)
BINARY(float, float, mul, u* v)
BINARY(float, float, div, u / v)
BINARY(float, float, mod, floor_mod(u, v))
BINARY(float, float, fmod, std::fmod(u, v))
BINARY(float, float, max, u != u ? u : (u > v ? u : v))
BINARY(float, float, min, u != u ? u : (u < v ? u : v))
BINARY(float, float, prelu, u >= 0.0f ? u : u * v)

BINARY(uint8_t, float, equal, u == v)
BINARY(uint8_t, float, less, u < v)
BINARY(uint8_t, float, less_equal, u <= v)
BINARY(uint8_t, float, greater, u > v)
BINARY(uint8_t, float, greater_equal, u >= v)

BINARY(uint8_t, int64_t, equal_i64, u == v)
BINARY(uint8_t, int64_t, less_i64, u < v)
BINARY(uint8_t, int64_t, less_equal_i64, u <= v)
BINARY(uint8_t, int64_t, greater_i64, u > v)
BINARY(uint8_t, int64_t, greater_equal_i64, u >= v)

BINARY(uint8_t, uint8_t, and, (u != 0) & (v != 0))
BINARY(uint8_t, uint8_t, or, (u != 0) | (v != 0))
BINARY(uint8_t, uint8_t, xor, (u != 0) ^ (v != 0))

// Squares, roots and reciprocals, the exponents of real models, without the library call.
PLIMSOLL_VECTORISED static bool pow_special(float* y, const float* a, float exponent, int64_t n) {
  if (exponent == 2.0f) {
    BINARY_LOOP(a[i], a[i], u * v)
  } else if (exponent == 3.0f) {
    BINARY_LOOP(a[i], a[i], u * v * u)
  } else if (exponent == 0.5f) {
    BINARY_LOOP(a[i], 0.0f, std::sqrt(u) + v)
  } else if (exponent == -1.0f) {
    BINARY_LOOP(a[i], 1.0f, v / u)
  } else {
    return false;
  }
  return true;
}

void pow_range(float* y, const float* a, const float* b, int64_t a_step, int64_t b_step, int64_t n) {
  if (a_step && !b_step && pow_special(y, a, *b, n)) return;
  for (int64_t i = 0; i < n; ++i) y[i] = std::pow(a[i * a_step], b[i * b_step]);
}

// Runs along the innermost collapsed dimension. With few outer iterations the runs themselves are cut.
template <typename Out, typename In>
static void broadcast_binary(BinaryRange<Out, In>* range, const LoopNest<3>& full, Out* y, const In* a, const In* b) {
  const LoopNest<3> nest = collapse(full);
  const int last = nest.rank - 1;
  const int64_t run = nest.sizes[last], a_step = nest.strides[1][last], b_step = nest.strides[2][last];
  const int64_t outer = run ? nest.iterations() / run : 0;
  if (outer == 1) {
    parallel_ranges(run, 2, [&](int64_t begin, int64_t end) {
      range(y + begin, a + begin * a_step, b + begin * b_step, a_step, b_step, end - begin);
    });
    return;
  }
  parallel_rows(outer, 2 * run, [&](int64_t begin, int64_t end) {
    walk_outer(nest, 1, begin, end,
               [&](const std::array<int64_t, 3>& at) { range(y + at[0], a + at[1], b + at[2], a_step, b_step, run); });
  });
}

void map_binary(FloatBinaryRange* range, const LoopNest<3>& nest, float* y, const float* a, const float* b) {
  broadcast_binary(range, nest, y, a, b);
}
void map_binary(FloatCompareRange* range, const LoopNest<3>& nest, uint8_t* y, const float* a, const float* b) {
  broadcast_binary(range, nest, y, a, b);
}
void map_binary(IndexCompareRange* range, const LoopNest<3>& nest, uint8_t* y, const int64_t* a, const int64_t* b) {
  broadcast_binary(range, nest, y, a, b);
}
void map_binary(LogicRange* range, const LoopNest<3>& nest, uint8_t* y, const uint8_t* a, const uint8_t* b) {
  broadcast_binary(range, nest, y, a, b);
}

PLIMSOLL_VECTORISED static void select_range(uint32_t* y, const uint8_t* condition, const uint32_t* a,
                                             const uint32_t* b, const int64_t* steps, int64_t n) {
  if (steps[0] == 1 && steps[1] == 1 && steps[2] == 1) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t yes = a[i], no = b[i];
      y[i] = condition[i] ? yes : no;
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t yes = a[i * steps[1]], no = b[i * steps[2]];
    y[i] = condition[i * steps[0]] ? yes : no;
  }
}

void where_32(const LoopNest<4>& full, uint32_t* y, const uint8_t* condition, const uint32_t* a, const uint32_t* b) {
  const LoopNest<4> nest = collapse(full);
  const int last = nest.rank - 1;
  const int64_t run = nest.sizes[last];
  const int64_t steps[3] = {nest.strides[1][last], nest.strides[2][last], nest.strides[3][last]};
  if (run == 0) return;
  parallel_rows(nest.iterations() / run, 2 * run, [&](int64_t begin, int64_t end) {
    walk_outer(nest, 1, begin, end, [&](const std::array<int64_t, 4>& at) {
      select_range(y + at[0], condition + at[1], a + at[2], b + at[3], steps, run);
    });
  });
}

void logical_not(uint8_t* y, const uint8_t* x, int64_t n) {
  parallel_ranges(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = x[i] == 0;
  });
}

void add_many(float* y, const float* const* operands, int64_t operand_count, int64_t n) {
  // Tiles stay in the first-level cache while all operands pass, and the sum is only stored when complete, so
  // y may be any operand.
  constexpr int64_t tile = 1024;
  parallel_ranges(n, operand_count, [&](int64_t begin, int64_t end) {
    float sum[tile];
    for (int64_t at = begin; at < end; at += tile) {
      const int64_t count = std::min(tile, end - at);
      std::copy_n(operands[0] + at, count, sum);
      for (int64_t o = 1; o < operand_count; ++o) add_range(sum, sum, operands[o] + at, 1, 1, count);
      std::copy_n(sum, count, y + at);
    }
  });
}

}  // namespace plimsoll::cpu
