#pragma once

// A linear layer of short sums over many rows on Hopper's warpgroups.

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace plimsoll::cuda {

struct ShortSumsCall {
  int64_t rows, depth, columns;  // depth and columns are multiples of 8
  const void* x;                 // [rows, depth]
  const void* w;                 // [depth, columns], or [columns, depth] where it is transposed
  const void* bias;              // [columns], or null
  void* y;                       // [rows, columns]: the product with the bias
  Scalar type;                   // BF16 or F16
  bool transpose_w;
  int multiprocessors;
};
[[nodiscard]] cudaError_t short_sums_product(const ShortSumsCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
