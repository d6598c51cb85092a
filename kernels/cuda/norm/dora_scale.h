#pragma once

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// y [outputs] = magnitude / norms, norms [outputs] those of the rows of w + scale * b a: a [rank, inputs],
// b [outputs, rank]. w is f32, bf16 or f16, [outputs, inputs] or with by_outputs false its transpose.
struct DoraScale {
  int64_t outputs, inputs, rank;
  bool by_outputs;
  float scale;
  const void* w;
  Scalar w_type;
  const float *a, *b, *magnitude;
  float *y, *norms;
};
[[nodiscard]] cudaError_t dora_scale(const DoraScale& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
