#pragma once

// Boxes of volumes for the copy engine, and products whose operands are rows of 64 or 128 bytes of them.

#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/common/warpgroup_wide.cuh"

namespace plimsoll::cuda {

// A volume [batch, depth, down, across, channels] of 16-bit elements. Boxes have so many planes, lines and pixels of
// 32 or 64 channels; what lies outside becomes 0. A pixel has 64 or 128 bytes in shared memory, whose 16-byte word w
// stands at place w ^ (p / 2 % 4) or w ^ (p % 8), p being the address in pixels.
struct VolumeBoxes {
  int64_t batch;
  int sizes[3];
  int64_t channels;
  int box[3], box_channels;
};
[[nodiscard]] cudaError_t map_volume(CUtensorMap& map, const void* volume, const VolumeBoxes& boxes);

// A place of a box: channel, across, down, depth and batch.
struct VolumePlace {
  int channel, across, down, depth, batch;
};

__device__ inline void copy_box(void* to, const CUtensorMap& map, const VolumePlace& at, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
      "[%7];" ::"r"(shared_address(to)),
      "l"(&map), "r"(at.channel), "r"(at.across), "r"(at.down), "r"(at.depth), "r"(at.batch),
      "r"(shared_address(barrier))
      : "memory");
}
__device__ inline void store_box(const void* box, const CUtensorMap& map, const VolumePlace& at) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(&map),
               "r"(at.channel), "r"(at.across), "r"(at.down), "r"(at.depth), "r"(at.batch), "r"(shared_address(box))
               : "memory");
}
// Bytes that lie one behind the other: a multiple of 16.
__device__ inline void copy_bytes(void* to, const void* from, int bytes, Barrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// A matrix that begins at any pixel. `groups_apart`: bytes between eight pixels and the next; `columns_apart`: of
// operands whose pixels are terms, bytes between the channels of a pixel and the next channels.
template <int pixel_bytes>
__device__ inline uint64_t shared_pixels(uint32_t first, uint32_t groups_apart, uint32_t columns_apart = 0) {
  static_assert(pixel_bytes == 64 || pixel_bytes == 128);
  constexpr uint64_t swizzle = pixel_bytes == 128 ? 1 : 2;
  return (first & 0x3ffff) >> 4 | static_cast<uint64_t>(columns_apart >> 4) << 16 |
         static_cast<uint64_t>(groups_apart >> 4) << 32 | swizzle << 62;
}

}  // namespace plimsoll::cuda
