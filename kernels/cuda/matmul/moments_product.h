#pragma once

// A product with the statistics of its result's columns, in two launches on Hopper's warpgroups.

#include "kernels/cuda/matmul/column_product_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

struct MomentsProductCall {
  ColumnTiling tiling;  // columns and depth are multiples of 8
  const void* left;     // [rows, depth]
  const void* right;    // [columns, depth]
  void* y;              // [rows, columns]
  float *mean, *var;    // [columns], of y as it is rounded; biased
  Scalar type;          // BF16 or F16
  float* workspace;     // tiling.workspace()
};
[[nodiscard]] cudaError_t moments_product(const MomentsProductCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
