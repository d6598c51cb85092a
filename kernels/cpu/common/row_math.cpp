#include "kernels/cpu/common/row_math.h"

#include "kernels/cpu/common/vector_math.h"

#include <algorithm>

namespace plimsoll::cpu {

constexpr int64_t sum_block = 1024;

// Adds `term` over x[0..n) block by block.
#define BLOCKED_SUM(term)                                                                                 \
  double total = 0;                                                                                       \
  for (int64_t begin = 0; begin < n; begin += sum_block) {                                                \
    const int64_t end = std::min(n, begin + sum_block);                                                   \
    float partial = 0;                                                                                    \
    _Pragma("omp simd reduction(+ : partial)") for (int64_t i = begin; i < end; ++i) { partial += term; } \
    total += partial;                                                                                     \
  }                                                                                                       \
  return total;

PLIMSOLL_VECTORISED double sum_of(const float* x, int64_t n){BLOCKED_SUM(x[i])} PLIMSOLL_VECTORISED
    double sum_of_squares(const float* x, int64_t n){BLOCKED_SUM(x[i] * x[i])} PLIMSOLL_VECTORISED
    double sum_of_squares_around(const float* x, float center,
                                 int64_t n){BLOCKED_SUM((x[i] - center) * (x[i] - center))} PLIMSOLL_VECTORISED
    double dot(const float* x, const float* y, int64_t n){BLOCKED_SUM(x[i] * y[i])} PLIMSOLL_VECTORISED
    double sum_of_exp(const float* x, float shift, int64_t n) {
  BLOCKED_SUM(vector_exp(x[i] - shift))
}

double product_of(const float* x, int64_t n) {
  double total = 1;
  for (int64_t i = 0; i < n; ++i) total *= x[i];
  return total;
}

PLIMSOLL_VECTORISED float max_of(const float* x, int64_t n) {
  float best = -infinity;
  int32_t unordered = 0;
#pragma omp simd reduction(max : best) reduction(| : unordered)
  for (int64_t i = 0; i < n; ++i) {
    best = x[i] > best ? x[i] : best;
    unordered |= x[i] != x[i];
  }
  return unordered ? std::numeric_limits<float>::quiet_NaN() : best;
}

PLIMSOLL_VECTORISED float min_of(const float* x, int64_t n) {
  float best = infinity;
  int32_t unordered = 0;
#pragma omp simd reduction(min : best) reduction(| : unordered)
  for (int64_t i = 0; i < n; ++i) {
    best = x[i] < best ? x[i] : best;
    unordered |= x[i] != x[i];
  }
  return unordered ? std::numeric_limits<float>::quiet_NaN() : best;
}

#define EACH(statement) \
  _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) { statement; }

PLIMSOLL_VECTORISED void exp_scaled(float* y, const float* x, float shift, float factor,
                                    int64_t n){EACH(y[i] = vector_exp(x[i] - shift) * factor)} PLIMSOLL_VECTORISED
    void add_to(float* total, const float* x, int64_t n){EACH(total[i] += x[i])} PLIMSOLL_VECTORISED
    void max_to(float* total, const float* x, int64_t n){
        EACH(total[i] = total[i] > x[i] || total[i] != total[i] ? total[i] : x[i])} PLIMSOLL_VECTORISED
    void min_to(float* total, const float* x, int64_t n){
        EACH(total[i] = total[i] < x[i] || total[i] != total[i] ? total[i] : x[i])} PLIMSOLL_VECTORISED
    void multiply_to(float* total, const float* x, int64_t n){EACH(total[i] *= x[i])} PLIMSOLL_VECTORISED
    void add_scaled_to(float* total, const float* x, float factor,
                       int64_t n){EACH(total[i] += x[i] * factor)} PLIMSOLL_VECTORISED
    void scale(float* y, const float* x, float factor, int64_t n) {
  EACH(y[i] = x[i] * factor)
}

}  // namespace plimsoll::cpu
