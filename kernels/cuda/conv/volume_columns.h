#pragma once

// How depthwise convolutions over volumes on the matrix units share the planes of columns. No CUDA here: plans are made
// where there is none.

#include "kernels/cuda/conv/depthwise_volumes.h"

namespace plimsoll::cuda {

// A block has some channels and goes down the planes of columns: some pixels of some lines of an image.
struct VolumeColumnPlan {
  static constexpr int taps = 3, unit = 8;
  static constexpr int64_t processors = 132, most_shared_bytes = 227 << 10, most_planes = int64_t{1} << 30;

  int channels, block_channels, channel_blocks;
  int width, across;              // pixels of a column; columns beside each other
  int lines = 1, row_blocks = 1;  // of a column; columns below each other
  int stages = 0;
  // Blocks of the same channels: they have whole columns, and share the planes of the others.
  int64_t whole_columns = 0, divided_columns = 0, splits = 0;
  int block_planes = 0, longer_blocks = 0;  // of the others each block has so many planes, and some have one more

  constexpr int64_t blocks() const { return splits * channel_blocks; }
  constexpr int64_t columns() const { return whole_columns + divided_columns; }
  // Planes that the busiest block goes through, of columns that have so many each and read others of the neighbours.
  constexpr int64_t plane_steps(int64_t planes, int64_t read_twice) const {
    const int64_t whole = divide_up(whole_columns, splits), divided = divide_up(divided_columns * planes, splits);
    return whole * (planes + read_twice) + divided + (divided > 0 ? read_twice : 0);
  }

 protected:
  VolumeColumnPlan(int channels, int block_channels, int results, int width)
      : channels(channels),
        block_channels(block_channels),
        channel_blocks(static_cast<int>(divide_up(channels, block_channels))),
        width(width),
        across(static_cast<int>(divide_up(results, width))) {}
  // Columns that do not go round are divided, unless the planes that two blocks read cost more than that saves.
  void share_columns(int64_t images, int down, int64_t planes) {
    constexpr int read_twice = taps - 1;
    row_blocks = static_cast<int>(divide_up(down, lines));
    const int64_t all = images * row_blocks * across, most = std::max<int64_t>(processors / channel_blocks, 1);
    const int64_t rest = all % most;
    const bool divides = divide_up(rest * planes, most) + read_twice < planes;
    divided_columns = divides ? rest : 0;
    whole_columns = all - divided_columns;
    splits = std::min(most, whole_columns + divided_columns * planes);
    if (splits == 0) return;
    block_planes = static_cast<int>(divided_columns * planes / splits);
    longer_blocks = static_cast<int>(divided_columns * planes % splits);
  }
  static constexpr int rounded(int64_t bytes, int to) { return static_cast<int>(divide_up(bytes, to)) * to; }
};

}  // namespace plimsoll::cuda
