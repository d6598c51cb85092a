#pragma once

#include "kernels/cuda/matmul/left_product_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// One matrix times each of a batch, on Hopper's warpgroups.
struct LeftProductCall {
  LeftProductTiles tiles;
  const void* w;  // [rows, depth], or [depth, rows] where it is transposed
  const void* x;  // [batch, depth, columns], columns a multiple of 8
  void* y;        // [batch, rows, columns]
  Scalar type;    // BF16 or F16
  bool w_is_transposed;
  int multiprocessors;
};

[[nodiscard]] cudaError_t left_product(const LeftProductCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
