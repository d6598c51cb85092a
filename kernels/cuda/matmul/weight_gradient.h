#pragma once

// The gradients of a linear layer's weight and bias in one pass over their operands, on Hopper's warpgroups.

#include "kernels/cuda/matmul/weight_gradient_sizes.h"
#include "kernels/scalar.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// How the copying unit takes an operand [depth, width] of 16-bit elements: boxes of 64 columns, whose rows have 128
// bytes in shared memory and are swizzled, and of one step's rows. What lies outside the operand arrives as zeros.
inline constexpr uint32_t weight_gradient_box[] = {64, WeightGradientTiles::step};

struct WeightGradientCall {
  WeightGradientTiles tiles;
  CUtensorMap left, right;
  Scalar type, y_type;  // of left and right: BF16 or F16; of the others: the same, or F32
  void* dw;             // [rows, columns]; may lie over the addend
  void* dbias;
  const void* addend;  // as dw; null: none
  float* workspace;    // tiles.workspace() floats
};
[[nodiscard]] cudaError_t weight_gradient(const WeightGradientCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
