#pragma once

// Softmax cross-entropy of logits [outer, classes, inner] with one integer label a row.

#include "kernels/strides.h"

namespace plimsoll::cpu {

struct CrossEntropyOptions {
  const float* class_weights = nullptr;  // [classes], or none
  float smoothing = 0;
  bool ignores = false;
  int64_t ignore_index = 0;
};

// Per row: loss, and lse. Returns the sum of the weights of counted labels, or a row whose label names no
// class in *bad_row (-1: none). Label is int32_t or int64_t.
template <typename Label>
double cross_entropy_rows(const AxisShape& shape, const CrossEntropyOptions& options, const float* logits,
                          const Label* labels, double* losses, float* lse, int64_t* bad_row);

// What flows back: dloss has `dloss_step` 1 for one per row, 0 for one in all, and is divided by `divisor`. Null, or
// one per row, `dlse` is the gradient of the lse.
struct LossGradient {
  const float* dloss;
  int64_t dloss_step;
  double divisor;
  const float* dlse;
};

// dlogits = dloss * d(row loss)/d(logits) + dlse * d(lse)/d(logits). dlogits may be the logits.
template <typename Label>
void cross_entropy_grad(const AxisShape& shape, const CrossEntropyOptions& options, float* dlogits, const float* logits,
                        const Label* labels, const float* lse, const LossGradient& gradient);

// Both at once, while rows are in the caches. With `is_mean` the divisor is the weight of the labels.
template <typename Label>
double cross_entropy_with_grad(const AxisShape& shape, const CrossEntropyOptions& options, float* dlogits,
                               const float* logits, const Label* labels, double* losses, float* lse,
                               LossGradient gradient, bool is_mean, int64_t* bad_row);

}  // namespace plimsoll::cpu
