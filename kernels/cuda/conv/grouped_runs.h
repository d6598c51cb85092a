#pragma once

// How convolutions of groups without strides divide their work on Hopper. No CUDA here: plans are made where there is
// none.

#include "kernels/cuda/conv/grouped_sizes.h"

namespace plimsoll::cuda {

// All images lie one below the other in one row of pixels, in which zeros follow each line and each image. A tap is a
// distance there and a tile any run of pixels, so that matrix units read their left operands where pixels lie. Blocks
// take turns of the tiles.
struct GroupedRuns {
  static constexpr int threads = 256, warpgroups = 2;
  static constexpr int run_rows = 64;                      // pixels of one product
  static constexpr int64_t max_block_units = 14'400;       // 230,400 bytes: one block a multiprocessor of Hopper
  static constexpr int64_t max_pixels = int64_t{1} << 31;  // of all images, zeros included

  int in_units, out_units, taps;         // units of channels of a group
  int out[2], in[2], pad[2], period[2];  // pad: zeros before the first pixel; period: pixels and zeros
  int block_groups, group_blocks;
  int pixels, in_pixels, plane_units;  // of a tile; a plane is one unit of its pixels
  int k_pairs, weight_units;           // pairs of units of terms, units of a group's weights
  int64_t image_pixels, items, splits;

  GroupedRuns(const ConvolutionSizes& c, bool gradient) {
    in_units = (gradient ? c.y_channels : c.x_channels) / unit_channels;
    out_units = (gradient ? c.x_channels : c.y_channels) / unit_channels;
    taps = c.taps();
    for (int d = 0; d < 2; ++d) {
      out[d] = gradient ? c.x[d] : c.y[d];
      in[d] = gradient ? c.y[d] : c.x[d];
      const int reach = c.kernel[d] - 1;
      pad[d] = gradient ? reach - c.pad[d] : c.pad[d];
      // The zeros before a line follow the one before it too.
      const int shared_zeros = std::min(pad[d], reach);
      period[d] = std::max(out[d] + reach - shared_zeros, std::min(in[d] + pad[d], out[d] + reach));
    }
    // Groups of one unit come in pairs, which fill a sector of 32 bytes; more than that were slower.
    block_groups = in_units == 1 && c.groups % 2 == 0 ? 2 : 1;
    group_blocks = c.groups / block_groups;
    k_pairs = static_cast<int>(divide_up(int64_t{taps} * in_units, 2));
    weight_units = 2 * k_pairs * out_units * unit_channels;
    image_pixels = int64_t{period[0]} * period[1];
    // As many blocks a multiprocessor as there are registers for, or what fits.
    const int64_t held_units = blocks_of_processor() == 3 ? max_third_units : 7'200;
    divide(c, 512);
    const bool is_full = items * group_blocks >= wanted_blocks();
    if (is_full && shared_units() <= held_units) return;
    divide(c, 256);
    if (!is_full || shared_units() <= held_units) return;
    divide(c, 512);
    if (shared_units() > max_block_units) divide(c, 256);
  }

  constexpr int blocks_of_processor() const { return out_units <= 4 ? 3 : 2; }
  int64_t blocks() const { return splits * group_blocks; }
  int64_t shared_units() const {
    return int64_t{block_groups} * (int64_t{in_units} * plane_units + weight_units) + table_units() + staged_units();
  }
  constexpr int table_units() const { return (k_pairs + 1) / 2; }
  constexpr int staged_units() const { return threads / 32 * 16 * odd_units(out_units); }

 private:
  int64_t wanted_blocks() const { return int64_t{132} * blocks_of_processor(); }  // an H200 has 132 multiprocessors
  void divide(const ConvolutionSizes& c, int tile_pixels) {
    pixels = tile_pixels;
    in_pixels = pixels + (c.kernel[0] - 1) * period[1] + c.kernel[1] - 1;
    plane_units = odd_units(in_pixels);
    items = divide_up(c.batch * image_pixels, pixels);
    splits = std::clamp<int64_t>(wanted_blocks() / group_blocks, 1, std::max<int64_t>(items, 1));
    splits = divide_up(items, std::max<int64_t>(1, divide_up(items, splits)));
  }
};

// 16-bit floats in groups of up to 64 channels, without strides and dilations. Taps lie behind each other: no line is
// shorter than the kernel. Counts of pixels are 32 bits wide.
inline bool fits_grouped_runs(const ConvolutionSizes& c, bool gradient) {
  if (!fits_grouped_tiles(c) || std::max(c.x_channels, c.y_channels) > max_unit_tiles * unit_channels) return false;
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] != 1 || c.dilation[d] != 1 || c.pad[d] >= c.kernel[d] || std::max(c.x[d], c.y[d]) > (1 << 16))
      return false;
  const GroupedRuns p(c, gradient);
  return p.period[1] >= c.kernel[1] && p.shared_units() <= GroupedRuns::max_block_units &&
         c.batch * p.image_pixels + p.in_pixels < GroupedRuns::max_pixels && p.blocks() < (int64_t{1} << 31);
}

}  // namespace plimsoll::cuda
