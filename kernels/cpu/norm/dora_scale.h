#pragma once

#include "kernels/scalar.h"

namespace plimsoll::cpu {

// y [outputs] = magnitude / norms, norms [outputs] those of the rows of w + scale * b a: a [rank, inputs],
// b [outputs, rank]. w is f32, bf16 or f16, [outputs, inputs] or with by_outputs false its transpose.
struct DoraScale {
  int64_t outputs = 0, inputs = 0, rank = 0;
  bool by_outputs = true;
  float scale = 1;
  const void* w = nullptr;
  Scalar w_type = Scalar::F32;
  const float *a = nullptr, *b = nullptr, *magnitude = nullptr;
  float *y = nullptr, *norms = nullptr;
};
void dora_scale(const DoraScale& call);

}  // namespace plimsoll::cpu
