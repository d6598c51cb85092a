#pragma once

// No CUDA here: plans are made where there is none.

#include <cstdint>

namespace plimsoll::cuda {

// An image [batch, size[0], size[1], channels] and its blocks [batch, blocks[0], blocks[1], block_channels]: a block of
// pixels becomes one pixel that has all their channels, row by row of the block, and zeros behind them. Arrays are
// down, then across.
struct SpaceToDepth {
  int64_t batch = 1, size[2] = {1, 1}, channels = 1;
  int64_t pad[2] = {0, 0};                         // zeros before the first pixel
  int64_t read[2] = {1, 1};                        // pixels that count; those behind are taken for zeros
  int64_t block[2] = {1, 1};                       // pixels of a block
  int64_t blocks[2] = {1, 1}, block_channels = 8;  // the latter a multiple of 8
};

}  // namespace plimsoll::cuda
