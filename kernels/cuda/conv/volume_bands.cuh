#pragma once

// What depthwise convolutions over volumes on the matrix units share on the device.

#include "kernels/cuda/common/volume_boxes.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/shared_pairs.cuh"
#include "kernels/cuda/conv/volume_bands.h"
#include "kernels/cuda/conv/volume_columns.cuh"

namespace plimsoll::cuda {

// What stands for lines outside a volume.
__device__ const uint4 zero_line[VolumeLinePlan::most_line_bytes / 16] = {};

// All of it, so that what lies beside pixels is a number.
__device__ inline void clear_shared(void* first, const void* end) {
  auto* words = static_cast<uint4*>(first);
  const int count = static_cast<int>(static_cast<const uint4*>(end) - words);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    words[i] = uint4{0, 0, 0, 0};
  show_to_matrix_units();
}

// Lines of a plane, of which a warp's threads ask for one each: `first` is the first line, and others lie `pitch`
// apart. Those outside the plane, or all of them where it is none, are zeros.
__device__ inline void copy_whole_lines(uint8_t* to, int pitch, int lines, const void* tensor, int64_t plane, int first,
                                        const int (&size)[3], int line_bytes, bool is_plane, Barrier* full) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, line = first + lane;
  const bool is_line = is_plane && static_cast<unsigned>(line) < static_cast<unsigned>(size[1]);
  const void* from =
      is_line ? static_cast<const void*>(static_cast<const uint8_t*>(tensor) + (plane * size[1] + line) * line_bytes)
              : zero_line;
  if (lane < lines) copy_bytes(to + lane * pitch, from, line_bytes, full);
}

}  // namespace plimsoll::cuda
