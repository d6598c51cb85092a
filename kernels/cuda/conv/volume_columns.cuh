#pragma once

// What depthwise convolutions over volumes on the matrix units share on the device: the columns of a block.

#include "kernels/cuda/common/ring_barriers.cuh"
#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/volume_columns.h"

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
    step_ = index_ * p.block_planes + min(index_, p.longer_blocks);
    end_ = step_ + p.block_planes + (index_ < p.longer_blocks ? 1 : 0);
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

// The planes that a column of results is made of, from `first` up to `end`: what meets the first tap of the first
// result is `first_plane`, and some may lie outside the volume.
struct ColumnPlanes {
  int first, end;

  __device__ ColumnPlanes(const VolumeColumns& at, int first_plane)
      : first(at.begin + first_plane), end(at.end + first_plane + VolumeColumnPlan::taps - 1) {}
  // Whether this plane completes one of results.
  __device__ bool completes(int plane) const { return plane >= first + VolumeColumnPlan::taps - 1; }
};
__device__ inline bool is_plane_of(const int (&size)[3], int plane) {
  return static_cast<unsigned>(plane) < static_cast<unsigned>(size[0]);
}

}  // namespace plimsoll::cuda
