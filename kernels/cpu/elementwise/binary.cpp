#include "kernels/cpu/elementwise/binary.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/vector_math.h"

#include <algorithm>
#include <cmath>

// The formulas of kernels/elementwise.def, each compiled for the four ways an innermost run can look: both operands
// advance, or one or both stand still.

namespace plimsoll::cpu {
namespace {

using std::fmod;

// Python's and ONNX's modulus: the sign of the divisor.
PLIMSOLL_INLINE float floor_mod(float a, float b) {
  const float rest = fmod(a, b);
  return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
}

}  // namespace

#define BINARY_LOOP(first, second, formula)             \
  _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) { \
    const auto a = first;                               \
    const auto b = second;                              \
    y[i] = formula;                                     \
  }
#define BINARY(Out, In, name, formula)                                                                      \
  PLIMSOLL_VECTORISED void name##_range(Out* y, const In* as, const In* bs, int64_t a_step, int64_t b_step, \
                                        int64_t n) {                                                        \
    if (a_step && b_step) {                                                                                 \
      BINARY_LOOP(as[i], bs[i], formula)                                                                    \
    } else if (a_step) {                                                                                    \
      const In still = *bs;                                                                                 \
      BINARY_LOOP(as[i], still, formula)                                                                    \
    } else if (b_step) {                                                                                    \
      const In still = *as;                                                                                 \
      BINARY_LOOP(still, bs[i], formula)                                                                    \
    } else {                                                                                                \
      const In still = *as, other = *bs;                                                                    \
      BINARY_LOOP(still, other, formula)                                                                    \
    }                                                                                                       \
  }

#define PLIMSOLL_BINARY(op, Name, formula) BINARY(float, float, op, formula)
#define PLIMSOLL_BINARY_FORM(form, Name, formula) BINARY(float, float, form, formula)
#define PLIMSOLL_BINARY_LIBRARY(op, Name)
#define PLIMSOLL_COMPARE(op, Name, formula) \
  BINARY(uint8_t, float, op, formula)       \
  BINARY(uint8_t, int64_t, op##_i64, formula)
#define PLIMSOLL_LOGIC(op, Name, formula) BINARY(uint8_t, uint8_t, op, formula)
#define PLIMSOLL_BITWISE(op, Name, formula)
#include "kernels/elementwise.def"

// Squares, roots and reciprocals, the exponents of real models, without the library call.
PLIMSOLL_VECTORISED static bool pow_special(float* y, const float* base, float exponent, int64_t n) {
  if (exponent == 2.0f) {
    BINARY_LOOP(base[i], base[i], a * b)
  } else if (exponent == 3.0f) {
    BINARY_LOOP(base[i], base[i], a * b * a)
  } else if (exponent == 0.5f) {
    BINARY_LOOP(base[i], 0.0f, std::sqrt(a) + b)
  } else if (exponent == -1.0f) {
    BINARY_LOOP(base[i], 1.0f, b / a)
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
