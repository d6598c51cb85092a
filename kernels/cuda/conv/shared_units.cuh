#pragma once

// Units of 8 channels as a thread reads them from shared memory and writes them there.

#include "kernels/cuda/common/tensor_core.cuh"

namespace plimsoll::cuda {

__device__ inline uint4 load_unit(uint32_t at) {
  uint4 unit;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
               : "r"(at)
               : "memory");
  return unit;
}
__device__ inline void store_unit(uint32_t at, const uint4& unit) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(unit.x), "r"(unit.y), "r"(unit.z), "r"(unit.w)
               : "memory");
}
// A unit has four pairs of channels.
constexpr int unit_pairs = 4;
__device__ inline uint32_t pair_of(const uint4& unit, int pair) {
  return pair == 0 ? unit.x : pair == 1 ? unit.y : pair == 2 ? unit.z : unit.w;
}

}  // namespace plimsoll::cuda
