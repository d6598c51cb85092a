#pragma once

// How convolutions of groups on the matrix units divide their work. No CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/image_runs.h"

namespace plimsoll::cuda {

inline constexpr int max_unit_tiles = 8;           // units of output channels that one block makes of a group
inline constexpr int64_t max_shared_units = 6000;  // 96,000 bytes: two blocks a multiprocessor of Hopper and of Ampere
inline constexpr int64_t max_third_units = 4800;   // 76,800 bytes: three blocks a multiprocessor of Hopper
inline constexpr int64_t max_weight_units = 2560;
inline constexpr int max_block_groups = 8, max_block_warps = 16, max_dw_warps = 8;

// How many groups a block takes: as many as fill 80 bytes of a pixel, and no group in vain where 48 bytes are left.
inline int groups_of_block(int groups, int units, int most) {
  const int limit = std::min({groups, most, static_cast<int>(divide_up(5, units))});
  for (int count = limit; count * units >= 3 || count == groups; --count)
    if (groups % count == 0) return count;
  return std::max(limit, 1);
}

// Shared memory holds the input pixels of a tile with the channels of some groups, and their weights or two parts of
// them; blocks take turns of the tiles.
struct GroupedTiles {
  static constexpr int64_t wanted_blocks = 1056;

  TapAxes axes;
  int pixels;  // of a tile
  PixelTiles tiles;
  int in_units, out_units;    // of a group
  int unit_tiles, out_parts;  // units of output channels a block makes of a group, and blocks that do so
  int block_groups, group_blocks;
  int row_tiles;  // 16-pixel tiles of a warp
  int pixel_warps, warps;
  int pixel_units, staged_units;  // of a pixel in shared memory, before and behind the products
  int weight_rows, tap_units, part_taps, row_units;
  int image_buffers;  // two, so that one fills while the other is multiplied, where weights come in one part
  int64_t image_units, weight_units, staged_all_units, table_entries, items, splits;

  GroupedTiles(const ConvolutionSizes& c, bool gradient)
      : axes(gradient ? gradient_axes(c) : forward_axes(c)), pixels(128), tiles(axes, pixels) {
    const int units = std::min(c.x_channels, c.y_channels) / unit_channels;
    divide(c, gradient, groups_of_block(c.groups, units, max_block_groups));
    if (shared_units() > max_shared_units) divide(c, gradient, 1);
    if (shared_units() <= max_shared_units) return;
    pixels = 64;
    tiles = PixelTiles(axes, pixels);
    divide(c, gradient, 1);
  }

  // One buffer of weights is enough where they come in one part.
  constexpr int weight_buffers() const { return axes.most_taps(0) * axes.most_taps(1) > part_taps ? 2 : 1; }
  int64_t shared_units() const {
    return image_buffers * image_units + weight_buffers() * weight_units + staged_all_units +
           divide_up(table_entries, 2) + pixels / 4;
  }
  int64_t blocks() const { return splits * axes.classes[0] * axes.classes[1] * group_blocks * out_parts; }

 private:
  void divide(const ConvolutionSizes& c, bool gradient, int groups) {
    in_units = (gradient ? c.y_channels : c.x_channels) / unit_channels;
    out_units = (gradient ? c.x_channels : c.y_channels) / unit_channels;
    out_parts = static_cast<int>(divide_up(out_units, max_unit_tiles));
    unit_tiles = static_cast<int>(divide_up(out_units, out_parts));
    if (unit_tiles == 5 || unit_tiles == 7) ++unit_tiles;
    block_groups = groups;
    group_blocks = static_cast<int>(divide_up(c.groups, block_groups));
    row_tiles = unit_tiles <= 4 ? 4 : 2;
    pixel_warps = pixels / (16 * row_tiles);
    warps = block_groups * pixel_warps;
    pixel_units = odd_units(block_groups * in_units);
    staged_units = odd_units(unit_tiles);
    image_units = int64_t{axes.largest_span(0, tiles.tile[0])} * axes.largest_span(1, tiles.tile[1]) * pixel_units;
    staged_all_units = int64_t{warps} * 16 * row_tiles * staged_units;
    const int most_taps = std::max(1, axes.most_taps(0) * axes.most_taps(1));
    table_entries = int64_t{most_taps} * in_units;
    weight_rows = gradient ? in_units * unit_channels : unit_tiles * unit_channels;
    tap_units = gradient ? unit_tiles : in_units;
    // Up to 40 KiB in one part, or parts of half of that.
    const int64_t units_of_tap = int64_t{block_groups} * weight_rows * tap_units;
    const int64_t held = most_taps * units_of_tap <= max_weight_units ? most_taps : max_weight_units / 2 / units_of_tap;
    part_taps = static_cast<int>(std::clamp<int64_t>(held, 1, most_taps));
    part_taps = static_cast<int>(divide_up(most_taps, divide_up(most_taps, part_taps)));
    row_units = odd_units(int64_t{part_taps} * tap_units);
    weight_units = int64_t{block_groups} * weight_rows * row_units;
    image_buffers = 2;
    if (weight_buffers() == 2 || shared_units() > max_shared_units) image_buffers = 1;
    items = c.batch * tiles.count();
    const int64_t keys = int64_t{axes.classes[0]} * axes.classes[1] * group_blocks * out_parts;
    splits = std::clamp<int64_t>(wanted_blocks / keys, 1, std::max<int64_t>(items, 1));
    splits = divide_up(items, std::max<int64_t>(1, divide_up(items, splits)));
  }
};

// Weight gradients: blocks take some taps of some groups over a part of all tiles of pixels; the parts are added up
// behind them.
struct GroupedWeightTiles {
  TapAxes axes;
  int pixels;  // of a tile
  PixelTiles tiles;
  int x_units, y_units, unit_tiles, y_parts;
  int block_groups, group_blocks;
  int part_taps, tap_parts;
  int row_tiles, group_warps, warps;  // 16-channel tiles of a warp, and the warps of a group
  int x_pixel_units, y_pixel_units;
  int64_t x_pixels, x_tile_units, y_tile_units, items, splits;

  // Blocks of four warps or fewer have tiles of twice the pixels, and three of them share a multiprocessor of an H200;
  // of larger ones two do.
  explicit GroupedWeightTiles(const ConvolutionSizes& c) : axes(forward_axes(c)), pixels(64), tiles(axes, pixels) {
    divide(c, 264);
    if (warps > max_dw_warps / 2) return;
    const bool has_large_images = int64_t{c.y[0]} * c.y[1] > pixels;
    if (has_large_images) resize(c, 128, 396);
    if (!has_large_images || shared_units() > max_third_units) resize(c, 64, 396);
  }

  int64_t shared_units() const { return 2 * (x_tile_units + y_tile_units) + pixels / 4; }
  int64_t blocks() const { return splits * group_blocks * tap_parts * y_parts; }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }

 private:
  void resize(const ConvolutionSizes& c, int tile_pixels, int64_t wanted_blocks) {
    pixels = tile_pixels;
    tiles = PixelTiles(axes, pixels);
    divide(c, wanted_blocks);
  }
  void divide(const ConvolutionSizes& c, int64_t wanted_blocks) {
    x_units = c.x_channels / unit_channels;
    y_units = c.y_channels / unit_channels;
    y_parts = static_cast<int>(divide_up(y_units, max_unit_tiles));
    unit_tiles = static_cast<int>(divide_up(y_units, y_parts));
    if (unit_tiles == 5 || unit_tiles == 7) ++unit_tiles;
    row_tiles = unit_tiles <= 4 ? 4 : 2;
    const int taps = c.taps();
    // As many taps as the tiles of a block's warps hold.
    const int held = std::max(1, max_dw_warps * row_tiles * 2 / x_units);
    tap_parts = static_cast<int>(divide_up(taps, held));
    part_taps = static_cast<int>(divide_up(taps, tap_parts));
    tap_parts = static_cast<int>(divide_up(taps, part_taps));
    group_warps = static_cast<int>(divide_up(divide_up(int64_t{part_taps} * x_units, 2), row_tiles));
    block_groups = groups_of_block(c.groups, std::min(x_units, y_units), std::max(1, max_dw_warps / group_warps));
    group_blocks = static_cast<int>(divide_up(c.groups, block_groups));
    warps = block_groups * group_warps;
    x_pixel_units = odd_units(block_groups * x_units);
    y_pixel_units = odd_units(block_groups * unit_tiles);
    int64_t span[2];
    for (int d = 0; d < 2; ++d) {
      TapAxis part = axes.at[d][0];
      if (d == 0) part.taps = std::min(part.taps, 1 + static_cast<int>(divide_up(part_taps - 1, c.kernel[1])));
      if (d == 1 && c.kernel[0] == 1) part.taps = std::min(part.taps, part_taps);
      span[d] = part.span(tiles.tile[d]);
    }
    x_pixels = span[0] * span[1];
    x_tile_units = x_pixels * x_pixel_units;
    y_tile_units = int64_t{pixels} * y_pixel_units;
    items = c.batch * tiles.count();
    splits = std::clamp<int64_t>(wanted_blocks / (int64_t{group_blocks} * tap_parts * y_parts), 1, items);
    splits = divide_up(items, divide_up(items, splits));
  }
};

// 16-bit floats whose groups are whole units of channels, within what a block holds. Counts are 32 bits wide, offsets
// of tensors 64.
inline bool fits_grouped_tiles(const ConvolutionSizes& c) {
  constexpr int64_t most = int64_t{1} << 30;
  if (c.groups < 2 || c.x_channels % unit_channels != 0 || c.y_channels % unit_channels != 0) return false;
  if (std::max(c.x_channels, c.y_channels) > 128 || c.taps() > 1024) return false;
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] > max_classes || std::max(c.x[d], c.y[d]) > (1 << 24) || c.dilation[d] > 4096 ||
        c.pad[d] > (1 << 20) || c.pad[d] < 0)
      return false;
  return c.weights() < most && c.batch < most;
}
inline bool fits(const GroupedTiles& t) {
  return t.warps <= max_block_warps && t.shared_units() <= max_shared_units && t.items < (int64_t{1} << 30) &&
         t.blocks() < (int64_t{1} << 31);
}
inline bool fits(const GroupedWeightTiles& t) {
  return t.warps <= max_dw_warps && t.shared_units() <= max_shared_units && t.blocks() < (int64_t{1} << 31) &&
         t.items < (int64_t{1} << 30);
}

}  // namespace plimsoll::cuda
