#pragma once

// A linear layer and the gelu of its result in one launch on Hopper's warpgroups.

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace plimsoll::cuda {

struct LinearGeluCall {
  int64_t rows, depth, columns;  // depth and columns are multiples of 8
  const void* x;                 // [rows, depth]
  const void* w;                 // [depth, columns], or [columns, depth] where it is transposed
  const void* bias;              // [columns], or null
  void* h;                       // [rows, columns]: the product with the bias
  void* y;                       // [rows, columns]: gelu of h as it is rounded
  Scalar type;                   // BF16 or F16
  bool transpose_w, tanh_form;
  int multiprocessors;
};
[[nodiscard]] cudaError_t linear_gelu(const LinearGeluCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
