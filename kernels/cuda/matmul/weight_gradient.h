#pragma once

// The gradients of a linear layer's weight and bias in one pass over their operands, on Hopper's warpgroups.

#include "kernels/cuda/matmul/weight_gradient_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

struct WeightGradientCall {
  WeightGradientTiles tiles;
  const void *left, *right;  // [depth, rows], [depth, columns]
  Scalar type, y_type;       // of left and right: BF16 or F16; of the others: the same, or F32
  void* dw;                  // [rows, columns]; may lie over the addend
  void* dbias;
  const void* addend;  // as dw; null: none
  float* workspace;    // tiles.workspace() floats
};
[[nodiscard]] cudaError_t weight_gradient(const WeightGradientCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
