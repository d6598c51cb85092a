#pragma once

// Softmax and log-softmax along one axis of [outer, length, inner], and their gradients. Results may be
// written over the first operand.

#include "kernels/strides.h"

namespace plimsoll::cpu {

enum class SoftmaxKind : uint8_t { Plain, Log };

void softmax(SoftmaxKind kind, const AxisShape& shape, float* y, const float* x);
void softmax_grad(SoftmaxKind kind, const AxisShape& shape, float* dx, const float* y, const float* dy);

// log sum exp of a row; -inf for a row of -inf.
float log_sum_exp(const float* x, int64_t n);
// The same for `width` <= lse_tile neighbouring columns, each `length` elements `stride` apart.
inline constexpr int64_t lse_tile = 64;
void log_sum_exp_columns(float* lse, const float* x, int64_t length, int64_t stride, int64_t width);

}  // namespace plimsoll::cpu
