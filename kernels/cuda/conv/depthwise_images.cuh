#pragma once

// What depthwise convolutions of whole small images share: a block's part of them, and where their pixels lie in shared
// memory.

#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/conv/depthwise_images.h"
#include "kernels/cuda/conv/depthwise_planes.cuh"
#include "kernels/cuda/conv/depthwise_sparse.cuh"

namespace plimsoll::cuda {

// Of the 504 that three threads, one of each warpgroup, have together.
constexpr int computing_registers = 232, copying_registers = 40;
constexpr int channel_pairs = SmallImages::warp_channels / 2;
constexpr int image_row_bytes = SmallImages::side * SmallImages::pixel_bytes;
constexpr int row_pairs = SmallImages::side / 2;

// A block's share: its channels, and its images. The first slot has those that do not fill one, so that products begin
// early. Blocks beside each other have the other channels of the same images.
struct ImageShare {
  int channel, split, first, end, slots;

  __device__ ImageShare(const SmallImages& p)
      : channel(static_cast<int>(blockIdx.x) * SmallImages::block_channels), split(static_cast<int>(blockIdx.y)) {
    first = static_cast<int>(int64_t{p.batch} * split / p.splits);
    end = static_cast<int>(int64_t{p.batch} * (split + 1) / p.splits);
    slots = (end - first + SmallImages::slot_images - 1) / SmallImages::slot_images;
  }
  __device__ int end_of(int slot) const { return end - (slots - 1 - slot) * SmallImages::slot_images; }
  __device__ int first_of(int slot) const { return slot == 0 ? first : end_of(slot - 1); }
  __device__ int images_of(int slot) const { return end_of(slot) - first_of(slot); }
};

// Bytes from a border to a warp's channels of a pixel of the first row of an image of a slot. Rows are whole turns of
// the banks, so that the others follow in equal steps.
__device__ inline int place_in_slot(int image, int column, int warp) {
  constexpr int half_unit_bytes = 2 * SmallImages::warp_channels;
  return place_in_pixel(image * SmallImages::pitch + column, warp / 2) + warp % 2 * half_unit_bytes;
}

// Of a warp, its two pairs.
__device__ inline uint2 load_channels(uint32_t at) {
  uint2 channels;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(channels.x), "=r"(channels.y) : "r"(at) : "memory");
  return channels;
}

__device__ inline uint8_t* bordered(void* shared) {
  constexpr uint32_t border = SmallImages::border_bytes;
  return static_cast<uint8_t*>(shared) + (border - shared_address(shared) % border) % border;
}

// Calls visit with the rows of taps as a constant.
template <typename Visit>
cudaError_t with_tap_rows(int rows, Visit visit) {
  return rows == SmallImages::max_tap_rows ? visit(std::integral_constant<int, SmallImages::max_tap_rows>())
                                           : with_kernel_size(rows, visit);
}

}  // namespace plimsoll::cuda
