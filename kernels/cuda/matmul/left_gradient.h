#pragma once

#include "kernels/cuda/matmul/left_product_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

struct LeftGradientCall {
  LeftGradientTiles tiles;
  const void *dy, *x;        // [batch, rows, columns], [batch, depth, columns]; columns a multiple of 8
  void *dw, *row_sums;       // [rows, depth], [rows]; no sums where that is null
  Scalar type, result_type;  // BF16 or F16; the same or F32
  float* workspace;
};

[[nodiscard]] cudaError_t left_gradient(const LeftGradientCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
