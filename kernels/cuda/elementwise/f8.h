#pragma once

// 8-bit floats with one scale for a whole tensor.

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// The smallest power of two, from 2^-126 on, that brings n numbers of f32, bf16 or f16 within `codes` when they are
// divided by it; 1 where all are zero, NaN where one is not finite. Workspace: f8_parts(n) words, where these
// are more than one.
struct F8Scale {
  const void* x;
  Scalar x_type;
  int64_t n;
  Scalar codes;
  float* scale;
  uint32_t* workspace;
};
[[nodiscard]] cudaError_t f8_scale(const F8Scale& call, cudaStream_t stream);

// Codes of x [rows, columns] over its scale, a power of two: as x lies, and its transpose. Either may be null. Numbers
// behind the largest code become it. Columns are a multiple of 16; with `turned` rows are too.
struct ToF8 {
  const void* x;
  Scalar x_type;
  int64_t rows, columns;
  const float* scale;
  Scalar type;
  uint8_t *codes, *turned;
};
[[nodiscard]] cudaError_t to_f8(const ToF8& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
