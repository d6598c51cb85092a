#pragma once

// Functions of one contiguous run of floats, for reductions, norms and softmax. Sums add blocks of
// a fixed length in float and the blocks in double, so they are as good as a double sum to a few ulp and the
// same for any number of threads.

#include <cstdint>

namespace plimsoll::cpu {

double sum_of(const float* x, int64_t n);
double sum_of_squares(const float* x, int64_t n);
// sum (x - center)^2
double sum_of_squares_around(const float* x, float center, int64_t n);
// sum x * y
double dot(const float* x, const float* y, int64_t n);
double product_of(const float* x, int64_t n);
// NaN anywhere gives NaN; -inf / +inf for n = 0.
float max_of(const float* x, int64_t n);
float min_of(const float* x, int64_t n);
// sum exp(x - shift)
double sum_of_exp(const float* x, float shift, int64_t n);
// y = exp(x - shift) * factor; y may be x
void exp_scaled(float* y, const float* x, float shift, float factor, int64_t n);

// Column-wise: total[i] (op)= x[i].
void add_to(float* total, const float* x, int64_t n);
void max_to(float* total, const float* x, int64_t n);
void min_to(float* total, const float* x, int64_t n);
void multiply_to(float* total, const float* x, int64_t n);
// total[i] += x[i] * factor
void add_scaled_to(float* total, const float* x, float factor, int64_t n);
// y[i] = x[i] * factor; y may be x
void scale(float* y, const float* x, float factor, int64_t n);

}  // namespace plimsoll::cpu
