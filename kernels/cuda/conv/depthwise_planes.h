#pragma once

// How depthwise convolutions on the matrix units divide their work. No CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/depthwise_sizes.h"
#include "kernels/cuda/conv/grouped_sizes.h"

namespace plimsoll::cuda {

inline constexpr int depthwise_units = 4;  // most units of 8 channels of a block

// A tile's pixels lie in shared memory channel by channel. A row of such a plane has the same row of some images side
// by side, each in `period` columns, which are zeros beyond the image. Results are made 8 columns at a time, a spot.
struct DepthwisePlanes {
  static constexpr int threads = 256, warps = threads / 32, max_columns = 64, spot = 8, most_spots = 8;

  int units, block_units, unit_blocks;
  int out[2], in[2], first[2];  // pixels; first: from an out pixel to the first in pixel it reads
  int width, column_tiles, image_spots, period, images;  // of a tile; out columns and spots of one image
  int rows, row_tiles, in_rows;                          // out rows of a tile
  int columns, row_units, plane_units, slots;            // slots: planes
  int64_t items, splits;

  constexpr int spots() const { return images * image_spots; }
  int64_t blocks() const { return splits * unit_blocks; }

 protected:
  static constexpr int rounded(int value, int to) { return static_cast<int>(divide_up(value, to)) * to; }

  // Columns with at least one zero behind an image's out columns.
  DepthwisePlanes(const ConvolutionSizes& c, bool gradient) {
    units = c.groups / unit_channels;
    block_units = std::min(units, depthwise_units);
    for (int count = block_units; count >= 2; --count)
      if (units % count == 0) {
        block_units = count;
        break;
      }
    unit_blocks = static_cast<int>(divide_up(units, block_units));
    slots = block_units * unit_channels;
    for (int d = 0; d < 2; ++d) {
      out[d] = gradient ? c.x[d] : c.y[d];
      in[d] = gradient ? c.y[d] : c.x[d];
      first[d] = gradient ? c.pad[d] - (c.kernel[d] - 1) : -c.pad[d];
    }
    const int reach = c.kernel[1] - 1;
    // Behind an image's last column come the zeros before the next one's first.
    const int shared_zeros = std::clamp(-first[1], 0, reach);
    width = out[1];
    column_tiles = 1;
    const int least = std::max(width + reach - shared_zeros, std::min(in[1] - first[1], width + reach));
    if (std::max(least, width + 1) <= max_columns) {
      period = rounded(std::max(least, width + 1), spot);
      images = static_cast<int>(std::min<int64_t>(max_columns / period, c.batch));
    } else {
      const int most = (max_columns - reach) / spot * spot;
      column_tiles = static_cast<int>(divide_up(width, most));
      width = rounded(static_cast<int>(divide_up(width, column_tiles)), spot);
      column_tiles = static_cast<int>(divide_up(out[1], width));
      period = rounded(width + reach, spot);
      images = 1;
    }
    image_spots = static_cast<int>(divide_up(width, spot));
    columns = images * period;
  }

  void divide_rows(const ConvolutionSizes& c, int most_rows, int multiple) {
    most_rows = std::max(most_rows / multiple * multiple, multiple);
    row_tiles = static_cast<int>(divide_up(out[0], most_rows));
    rows = rounded(static_cast<int>(divide_up(out[0], row_tiles)), multiple);
    row_tiles = static_cast<int>(divide_up(out[0], rows));
    in_rows = rows + c.kernel[0] - 1;
    items = divide_up(c.batch, images) * row_tiles * column_tiles;
  }
  void divide_items(int64_t wanted_blocks) {
    splits = std::clamp<int64_t>(wanted_blocks / unit_blocks, 1, std::max<int64_t>(items, 1));
    splits = divide_up(items, std::max<int64_t>(1, divide_up(items, splits)));
  }
};

// conv and conv_dx: results take the place of the pixels they were made of. Behind the planes lie a unit that nobody
// reads, words of two neighbouring weights for each plane and once more as zeros, the planes' biases, and what is read
// in vain behind the last plane.
struct DepthwiseBands : DepthwisePlanes {
  int parts, part_rows;  // of a tile, one below the other, which are made at once where a row has few spots

  DepthwiseBands(const ConvolutionSizes& c, bool gradient, int64_t plane_bytes = 66 << 10, int64_t wanted_blocks = 396)
      : DepthwisePlanes(c, gradient) {
    row_units = columns / unit_channels;
    divide_rows(c, static_cast<int>(plane_bytes / (int64_t{slots} * columns * 2)) - (c.kernel[0] - 1), 2);
    // A part is not higher than what has been read of it before the next one's first rows are written.
    parts = DepthwisePlanes::most_spots / spots();
    part_rows = rounded(static_cast<int>(divide_up(rows, parts)), 2);
    if (part_rows > c.kernel[0] + 1) part_rows = rows;
    parts = static_cast<int>(divide_up(rows, part_rows));
    plane_units = odd_units(int64_t{in_rows} * row_units + 1);
    divide_items(wanted_blocks);
  }
  int64_t shared_bytes(const ConvolutionSizes& c) const {
    return (int64_t{slots} * plane_units + 1) * 16 + int64_t{slots + 1} * c.kernel[0] * (c.kernel[1] + 1) * 4 +
           int64_t{slots} * 4 + int64_t{c.kernel[0] + 1} * row_units * 16;
  }
};

// conv_dw: planes of x and behind them of dy, whose rows lie so that four of them are read without conflicts.
struct DepthwiseWeightBands : DepthwisePlanes {
  static constexpr int row_block = 4, row_blocks = 2, line_units = 10;

  int dy_plane_units;
  int runs, run_units, run_chunks;  // chunks of 16 columns, in runs that begin so many units apart

  explicit DepthwiseWeightBands(const ConvolutionSizes& c, int64_t wanted_blocks = 264) : DepthwisePlanes(c, false) {
    columns = rounded(columns, 2 * spot);
    row_units = line_units;
    const int image_chunks = static_cast<int>(divide_up(width + 1, 2 * spot));  // with the zero behind
    const bool by_image = 2 * spot * image_chunks <= period;
    runs = by_image ? images : 1;
    run_units = period / unit_channels;
    run_chunks = by_image ? image_chunks : columns / (2 * spot);
    divide_rows(c, row_block * row_blocks, row_block * row_blocks);
    plane_units = odd_units(int64_t{in_rows} * row_units + 1);
    dy_plane_units = odd_units(int64_t{rows} * row_units + 1);
    divide_items(wanted_blocks);
  }
  static constexpr int blocks_under(int kernel) { return static_cast<int>(divide_up(kernel - 1, row_block)) + 1; }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
  // Reads of x reach a block of rows further than its planes; sums of 16 x 8 terms lie there in the end.
  int64_t shared_bytes(const ConvolutionSizes& c) const {
    const int64_t units_used = int64_t{slots} * (plane_units + dy_plane_units) + 1;
    return std::max(units_used * 16, int64_t{slots} * blocks_under(c.kernel[0]) * 128 * 4);
  }
};

// 3 x 3, 5 x 5 and 7 x 7 in a 16-bit float, without strides and dilations.
inline bool fits_depthwise_bands(const ConvolutionSizes& c) {
  if (!fits_depthwise(c) || c.groups % unit_channels != 0) return false;
  const int k = c.kernel[0];
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] != 1 || c.dilation[d] != 1) return false;
  constexpr int64_t most = int64_t{1} << 30;
  return c.kernel[1] == k && (k == 3 || k == 5 || k == 7) && DepthwiseBands(c, false).items < most &&
         DepthwiseBands(c, true).items < most && DepthwiseWeightBands(c).items < most;
}

}  // namespace plimsoll::cuda
