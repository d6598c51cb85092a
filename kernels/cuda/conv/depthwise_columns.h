#pragma once

// How 3 x 3 depthwise weight gradients without strides divide their work on Hopper. No CUDA here: plans are made where
// there is none.

#include "kernels/cuda/conv/depthwise_planes.h"

namespace plimsoll::cuda {

// Images lie side by side and one below the other, so that there is one run of rows, with the zeros between images that
// taps read. A block goes down a part of the run with 32 channels; 16 threads have 7 columns of dy, a strip, and two
// channels each. Units of 8 channels are copied in as few pieces as their alignment allows.
struct DepthwiseColumns {
  static constexpr int kernel = 3, strip = 7, max_columns = 112;
  static constexpr int block_units = 4, slots = block_units * unit_channels;  // slots: channels
  static constexpr int strip_threads = slots / 2, max_threads = max_columns / strip * strip_threads;
  static constexpr int stages = 3;            // of as many rows as the kernel has
  static constexpr int64_t processors = 132;  // of an H100 and an H200

  int channels, unit_blocks;
  int piece_channels;           // 8, 4 or 2
  int out[2], in[2], first[2];  // pixels of dy and of x; first: from a pixel of dy to the first of x that it meets
  int width, column_tiles;      // columns of dy of one image in a tile
  int period, images;           // columns from one image to the next, and images side by side
  int image_strips, strips, row_pixels, dy_pixels;  // row_pixels: columns of x; dy_pixels: of dy
  int row_period;                                   // rows from one image to the next
  int64_t run_rows;
  int block_rows, splits;  // rows of a block; parts of the run

  explicit DepthwiseColumns(const ConvolutionSizes& c) {
    channels = c.groups;
    unit_blocks = static_cast<int>(divide_up(channels, slots));
    piece_channels = channels % unit_channels == 0 ? unit_channels : channels % 4 == 0 ? 4 : 2;
    for (int d = 0; d < 2; ++d) out[d] = c.y[d], in[d] = c.x[d], first[d] = -c.pad[d];
    row_period = least_period(0);
    period = least_period(1);
    width = out[1];
    column_tiles = static_cast<int>(divide_up(width, max_columns));
    if (column_tiles > 1) {
      width = static_cast<int>(divide_up(divide_up(width, column_tiles), strip)) * strip;
      column_tiles = static_cast<int>(divide_up(out[1], width));
      period = width + reach;
    }
    image_strips = static_cast<int>(divide_up(width, strip));
    images =
        column_tiles > 1 ? 1 : static_cast<int>(std::clamp<int64_t>(c.batch, 1, max_columns / strip / image_strips));
    for (;; --images) {
      strips = images * image_strips;
      dy_pixels = strips * strip;
      row_pixels = (images - 1) * period + image_strips * strip + reach;
      if (images == 1 || copies_fit()) break;
    }
    run_rows = divide_up(c.batch, images) * row_period;
    const int64_t wanted = processors / (int64_t{unit_blocks} * column_tiles);
    block_rows = static_cast<int>(divide_up(run_rows, std::clamp<int64_t>(wanted, 1, std::max<int64_t>(run_rows, 1))));
    splits = static_cast<int>(divide_up(run_rows, std::max(block_rows, 1)));
  }

  int threads() const { return static_cast<int>(divide_up(strips, 2)) * 32; }
  int64_t blocks() const { return int64_t{splits} * unit_blocks * column_tiles; }
  // A thread copies up to two vectors of each row.
  bool copies_fit() const { return std::max(row_pixels, dy_pixels) * block_units <= 2 * threads(); }
  int64_t parts_of_sums() const { return int64_t{splits} * column_tiles; }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return parts_of_sums() * c.weights() * 4; }
  // The sums of the strips lie there in the end.
  int64_t shared_bytes() const {
    return std::max(int64_t{stages} * kernel * (row_pixels + dy_pixels) * block_units * 16,
                    threads() / strip_threads * int64_t{kernel * kernel} * slots * 4);
  }

 private:
  static constexpr int reach = kernel - 1;
  // Pixels and zeros from one image to the next: behind an image's last pixel come the zeros before the next one's
  // first.
  int least_period(int d) const {
    const int shared_zeros = std::clamp(-first[d], 0, reach);
    return std::max({out[d] + reach - shared_zeros, std::min(in[d] - first[d], out[d] + reach), out[d]});
  }
};

// 3 x 3 in a 16-bit float, without strides and dilations, of even channels; rows and their elements are counted in 32
// bits.
inline bool fits_depthwise_columns(const ConvolutionSizes& c) {
  constexpr int64_t most = int64_t{1} << 30;
  if (!fits_depthwise(c) || c.groups % 2 != 0) return false;
  for (int d = 0; d < 2; ++d)
    if (c.kernel[d] != DepthwiseColumns::kernel || c.stride[d] != 1 || c.dilation[d] != 1) return false;
  if (int64_t{std::max(c.x[1], c.y[1])} * c.groups >= most) return false;
  const DepthwiseColumns p(c);
  return p.copies_fit() && p.run_rows < most && p.blocks() < most;
}

}  // namespace plimsoll::cuda
