#pragma once

// What depthwise convolutions over volumes on the matrix units share on the device.

#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/common/line_boxes.cuh"
#include "kernels/cuda/common/volume_boxes.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/shared_pairs.cuh"
#include "kernels/cuda/conv/volume_bands.h"

namespace plimsoll::cuda {

// Where the constants of a block are.
__device__ inline int first_channel(const VolumeColumnPlan& p) {
  return static_cast<int>(blockIdx.x) % p.channel_blocks * p.block_channels;
}

// The columns of a block: whole ones, which its neighbours go down beside it, and then its share of the planes of all
// others. Of each it has the planes from `begin` up to `end`.
struct VolumeColumns {
  int image, column, line;  // the first of each
  int begin, end;

  __device__ VolumeColumns(const VolumeColumnPlan& p, int planes) : planes_(planes) {
    index_ = static_cast<int>(blockIdx.x) / p.channel_blocks;
    const int64_t divided = p.divided_columns * planes;
    step_ = static_cast<int>(divided * index_ / p.splits);
    end_ = static_cast<int>(divided * (index_ + 1) / p.splits);
    find(p);
  }
  __device__ bool is_there() const { return begin < end; }
  __device__ void next(const VolumeColumnPlan& p) {
    index_ += static_cast<int>(p.splits);
    find(p);
  }

 private:
  int planes_, index_, step_, end_;

  __device__ void find(const VolumeColumnPlan& p) {
    int of = index_;
    begin = 0, end = planes_;
    if (index_ >= p.whole_columns) {
      const int at = step_ / planes_;
      begin = step_ - at * planes_;
      end = min(planes_, begin + end_ - step_);
      step_ += end - begin;
      of = static_cast<int>(p.whole_columns) + at;
    }
    Digits digits{static_cast<unsigned>(of)};
    column = digits.take(p.across) * p.width;
    line = digits.take(p.row_blocks) * p.lines;
    image = static_cast<int>(digits.rest);
  }
};

// What stands for lines outside a volume.
__device__ const uint4 zero_line[VolumeColumnPlan::most_line_bytes / 16] = {};

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
