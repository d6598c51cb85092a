#pragma once

// The gradient of a product's left operand with the sums of a batch norm's gradient, in two launches on Hopper's
// warpgroups.

#include "kernels/cuda/matmul/column_product_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

struct GradientSumsCall {
  ColumnTiling tiling;  // columns and depth are multiples of 8
  const void* dy;       // [rows, depth]
  const void* w;        // [depth, columns]
  const void* x;        // [rows, columns]: what was normalised
  const void *y = nullptr,
             *more_dy = nullptr;  // [rows, columns]: behind a residual and a ReLU, and perhaps a second dy
  const float *mean, *var;        // [columns]
  const void* scale;              // [columns], of parameter_type, as are dscale and dbias
  const void* bias = nullptr;     // [columns]: behind a ReLU without a residual
  void* dz;                       // [rows, columns]
  float* sums;                    // [2, columns]
  void *dscale, *dbias;
  Scalar type, parameter_type;  // BF16 or F16; any float
  float eps;
  float* workspace;  // tiling.workspace()
};
[[nodiscard]] cudaError_t gradient_sums_product(const GradientSumsCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
