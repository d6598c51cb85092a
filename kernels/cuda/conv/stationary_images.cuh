#pragma once

// What the kernels of weight-stationary convolutions and of their weight gradients have in common.

#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/cuda/conv/stationary_images.h"

namespace plimsoll::cuda {

// The two computing warpgroups wait for each other.
__device__ inline void wait_for_both() {
  asm volatile("bar.sync 1, %0;" ::"n"(StationaryImages::computing_threads) : "memory");
}

// A warp writes `zeros` pixels of zeros behind the `pixels` of a plane.
__device__ inline void write_zeros_behind(uint8_t* plane, int pixels, int zeros) {
  auto* units = reinterpret_cast<uint4*>(plane + pixels * StationaryImages::pixel_bytes);
  for (int i = static_cast<int>(threadIdx.x) % warp_threads; i < zeros * StationaryImages::block_units;
       i += warp_threads)
    units[i] = uint4{};
}

}  // namespace plimsoll::cuda
