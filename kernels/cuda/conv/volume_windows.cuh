#pragma once

// What depthwise convolutions over volumes by windows share on the device.

#include "kernels/cuda/conv/depthwise_sparse.cuh"
#include "kernels/cuda/conv/volume_columns.cuh"
#include "kernels/cuda/conv/volume_windows.h"

namespace plimsoll::cuda {

// The same product as multiply_add_sparse of half as many terms: a right operand of 8 pixels of two channels, of which
// thread 4 g + t has pixels t and 4 + t, and a left one of whose pixels it has 2 t and 2 t + 1 of either channel.
template <typename T>
__device__ void multiply_add_half_sparse(float (&sum)[4], const uint32_t (&left)[2], const uint32_t (&right)[2]) {
  constexpr uint32_t places_of_nonzeros = 0xdddd8888;
#define PLIMSOLL_HALF_SPARSE_PRODUCT(type)                                                 \
  asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32." type "." type \
               ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6, %7}, {%0, %1, %2, %3}, %8, 0x0;"     \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                    \
               : "r"(left[0]), "r"(left[1]), "r"(right[0]), "r"(right[1]), "r"(places_of_nonzeros))
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_HALF_SPARSE_PRODUCT("bf16");
  else
    PLIMSOLL_HALF_SPARSE_PRODUCT("f16");
#undef PLIMSOLL_HALF_SPARSE_PRODUCT
}

// Of the 504 that three threads, one of each warpgroup, have together.
constexpr int window_registers = 232, window_copying_registers = 40;

// Bytes from a stage to a unit of a pixel, as the copy engine puts boxes of 64 channels (map_image).
__device__ inline uint32_t place_of_unit(int pixel, int unit) {
  return pixel * VolumeWindowPlan::pixel_bytes + ((unit ^ pixel) & 7) * (2 * VolumeWindowPlan::unit);
}

// Boxes of so many lines and pixels of all planes of a tensor, of sizes from depth to across.
inline cudaError_t map_windows(CUtensorMap& map, const void* tensor, int64_t batch, const int (&size)[3], int channels,
                               int lines, int pixels) {
  return map_image(map, tensor, {{batch * size[0], size[1], size[2], channels}, {1, lines, pixels}, {1, 1}});
}

}  // namespace plimsoll::cuda
