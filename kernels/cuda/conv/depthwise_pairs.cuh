#pragma once

// What depthwise convolutions on pairs of channels share. Pixels of 64 channels lie in shared memory as the copy engine
// puts them there: unit u of pixel p at place u ^ (p % 8) of its 128 bytes.

#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/depthwise_pairs.h"
#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/shared_units.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

namespace plimsoll::cuda {

// Bytes from a border of boxes to a unit of 8 channels.
__device__ inline int place_of_unit(int pixel, int unit) {
  return pixel * DepthwisePairs::pixel_bytes + ((unit ^ pixel) & 7) * 16;
}

// Behind a border of boxes.
__device__ inline uint8_t* first_box_border(void* shared) {
  constexpr uint32_t border = DepthwisePairs::border_bytes;
  return static_cast<uint8_t*>(shared) + (border - shared_address(shared) % border) % border;
}

// Sums of a strip in one row of results: rows of a left operand are the first blocks of 8 strips, then their second.
using StripSums = float[unit_pairs][4];

__device__ inline void begin_with(StripSums& sums, const float* biases) {
#pragma unroll
  for (int i = 0; i < unit_pairs / 2; ++i) {
    const float4 four = reinterpret_cast<const float4*>(biases)[i];
    float(&low)[4] = sums[2 * i], (&high)[4] = sums[2 * i + 1];
    low[0] = low[2] = four.x, low[1] = low[3] = four.y;
    high[0] = high[2] = four.z, high[1] = high[3] = four.w;
  }
}

template <typename T>
__device__ uint4 rounded_results(const StripSums& sums, int second) {
  const auto pair = [&](int i) { return packed_pair<T>(sums[i][2 * second], sums[i][2 * second + 1]); };
  return {pair(0), pair(1), pair(2), pair(3)};
}

__device__ inline void wait_for_computing_threads() {
  asm volatile("bar.sync 1, %0;" ::"n"(DepthwisePairs::computing_threads) : "memory");
}

}  // namespace plimsoll::cuda
