#pragma once

// How depthwise convolutions divide their work. No CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/grouped_sizes.h"

namespace plimsoll::cuda {

inline constexpr int depthwise_units = 4;  // most warps of a block, with 8 channels each

// On the matrix units, without strides and dilations: a warp has 8 channels, and goes down 16 columns of a tile.
// Blocks take turns of the tiles.
struct DepthwiseTiles {
  static constexpr int columns = 16, half_columns = 8, most_rows = 14;

  int units, block_units, unit_blocks;  // of 8 channels; warps of a block
  int out[2], in[2], first[2];          // pixels; first: from an out pixel to the first in pixel it reads
  bool narrow;                          // a tile is 8 columns of each of two images
  int rows, row_tiles, column_tiles;    // of a tile, and tiles of an image
  int tile_width, pixel_units;          // of the tile's in pixels in shared memory
  int64_t image_units, items, splits;

  DepthwiseTiles(const ConvolutionSizes& c, bool gradient, int64_t wanted_blocks = 1056) {
    units = c.groups / unit_channels;
    block_units = std::min(units, depthwise_units);
    for (int count = block_units; count >= 2; --count)
      if (units % count == 0) {
        block_units = count;
        break;
      }
    unit_blocks = static_cast<int>(divide_up(units, block_units));
    for (int d = 0; d < 2; ++d) {
      out[d] = gradient ? c.x[d] : c.y[d];
      in[d] = gradient ? c.y[d] : c.x[d];
      first[d] = gradient ? c.pad[d] - (c.kernel[d] - 1) : -c.pad[d];
    }
    narrow = out[1] <= half_columns && c.batch > 1;
    row_tiles = static_cast<int>(divide_up(out[0], most_rows));
    rows = static_cast<int>(divide_up(out[0], row_tiles));
    column_tiles = narrow ? 1 : static_cast<int>(divide_up(out[1], columns));
    tile_width = narrow ? 2 * (half_columns + c.kernel[1] - 1) : columns + c.kernel[1] - 1;
    pixel_units = odd_units(block_units);
    image_units = int64_t{rows + c.kernel[0] - 1} * tile_width * pixel_units;
    items = (narrow ? divide_up(c.batch, 2) : c.batch) * row_tiles * column_tiles;
    splits = std::clamp<int64_t>(wanted_blocks / unit_blocks, 1, std::max<int64_t>(items, 1));
    splits = divide_up(items, std::max<int64_t>(1, divide_up(items, splits)));
  }

  int64_t blocks() const { return splits * unit_blocks; }
};

// Weight gradients on the matrix units: dy's tile lies behind x's.
struct DepthwiseWeightTiles : DepthwiseTiles {
  int64_t dy_units;

  explicit DepthwiseWeightTiles(const ConvolutionSizes& c) : DepthwiseTiles(c, false, 396) {
    dy_units = int64_t{rows} * columns * pixel_units;
  }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
};

// Weight gradients of any depthwise convolution: a thread has some channels and up to 8 taps of a row of the kernel,
// and blocks take turns of dy's rows.
struct DepthwiseRows {
  static constexpr int threads = 256, held_taps = 8, most_tap_rows = 8;
  static constexpr int64_t wanted_blocks = 1056;

  int length, channel_threads, channel_blocks;  // channels of a thread; threads across, and blocks
  int tap_columns, tap_rows, block_tap_rows, tap_blocks, pixel_threads;
  int64_t lines, splits;

  DepthwiseRows(const ConvolutionSizes& c, int element_bytes) {
    length = c.groups % (16 / element_bytes) == 0 ? 16 / element_bytes : 1;
    channel_threads = length == 1 ? 32 : 8;
    channel_blocks = static_cast<int>(divide_up(c.groups, length * channel_threads));
    tap_columns = static_cast<int>(divide_up(c.kernel[1], held_taps));
    tap_rows = c.kernel[0] * tap_columns;
    block_tap_rows = std::min(tap_rows, most_tap_rows);
    tap_blocks = static_cast<int>(divide_up(tap_rows, block_tap_rows));
    pixel_threads = threads / channel_threads / block_tap_rows;
    lines = c.batch * c.y[0];
    splits = std::clamp<int64_t>(wanted_blocks / (int64_t{channel_blocks} * tap_blocks), 1, lines);
    splits = divide_up(lines, divide_up(lines, splits));
  }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
};

inline bool is_depthwise(const ConvolutionSizes& c) { return c.groups > 1 && c.x_channels == 1 && c.y_channels == 1; }

inline constexpr int max_depthwise_taps = 1024;
inline constexpr int max_depthwise_weights = 12288;  // f32, of a block in shared memory

// Counts are 32 bits wide, offsets of tensors 64.
inline bool fits_depthwise(const ConvolutionSizes& c) {
  constexpr int64_t most = int64_t{1} << 30;
  if (!is_depthwise(c) || c.taps() > max_depthwise_taps || c.weights() >= most || c.batch >= most) return false;
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] > max_classes || std::max(c.x[d], c.y[d]) > (1 << 24) || c.dilation[d] > 4096 ||
        c.pad[d] > (1 << 20) || c.pad[d] < 0)
      return false;
  return c.batch * c.x[0] < most && c.batch * c.y[0] < most;
}

// 3 x 3, 5 x 5 and 7 x 7 in a 16-bit float.
inline bool fits_depthwise_tiles(const ConvolutionSizes& c) {
  if (!fits_depthwise(c) || c.groups % unit_channels != 0) return false;
  const int k = c.kernel[0];
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] != 1 || c.dilation[d] != 1) return false;
  return c.kernel[1] == k && (k == 3 || k == 5 || k == 7) && DepthwiseTiles(c, false).items < (int64_t{1} << 30) &&
         DepthwiseTiles(c, true).items < (int64_t{1} << 30);
}

}  // namespace plimsoll::cuda
