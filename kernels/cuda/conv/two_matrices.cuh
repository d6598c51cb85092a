#pragma once

#include "kernels/cuda/common/tensor_core.cuh"

namespace plimsoll::cuda {

// As store_matrices, but two matrices, with addresses from the first 16 threads (sm_90).
__device__ inline void store_two_matrices(void* row, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)), "r"(first),
               "r"(second)
               : "memory");
}

}  // namespace plimsoll::cuda
