#pragma once

// Pairs of channels of a pixel as a thread reads them from shared memory and writes them there, and bytes that the copy
// engine moves from there.

#include "kernels/cuda/common/tensor_core.cuh"

namespace plimsoll::cuda {

__device__ inline uint32_t load_pair(uint32_t from) {
  uint32_t pair;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(from) : "memory");
  return pair;
}
__device__ inline void store_pair_if(uint32_t stores, uint32_t to, uint32_t pair) {
  asm volatile("{\n.reg .pred stores;\nsetp.ne.u32 stores, %0, 0;\n@stores st.shared.u32 [%1], %2;\n}" ::"r"(stores),
               "r"(to), "r"(pair)
               : "memory");
}

// Bytes that lie one behind the other: a multiple of 16. As store_box.
__device__ inline void store_bytes(const void* from, void* to, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
}

}  // namespace plimsoll::cuda
