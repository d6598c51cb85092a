#pragma once

// The gradient of a linear layer's input times the slope of the gelu before it, in one launch on Hopper's warpgroups.

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace plimsoll::cuda {

struct LinearGeluGradCall {
  int64_t rows, depth, columns;  // depth and columns are multiples of 8
  const void* dy;                // [rows, depth]
  const void* w;                 // [depth, columns], or [columns, depth] where it is transposed
  const void* x;                 // [rows, columns]: what gelu was of
  void* dx;                      // [rows, columns]
  Scalar type;                   // BF16 or F16
  bool transpose_w, tanh_form;
  int multiprocessors;
};
[[nodiscard]] cudaError_t linear_gelu_grad(const LinearGeluGradCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
