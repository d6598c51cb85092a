#pragma once

// How weight gradients of 3 x 3 convolutions of groups, whose sums stay in registers, divide their work on Hopper.

#include "kernels/cuda/conv/stationary_images.h"

namespace plimsoll::cuda {

// Products have 16 pixels of dy, by its channels, and as many of x under a tap. dy comes with the pitch of x's lines,
// with zeros where these have pixels around the image, so that both are runs. The sums of all tiles of a block are a
// part of dw.
struct GroupedStationarySums : StationaryImages {
  static constexpr int step_pixels = 16, joined_taps = kernel * kernel;

  int dy_lines = 0;  // of an image in a plane
  QuickDivisor of_blocks;

  explicit GroupedStationarySums(const ConvolutionSizes& c) : StationaryImages(c, false) {
    line_pixels = out[1] + reach_across - shared_zeros(1);
    choose_tile();
    if (stages == 0) return;
    tiles = static_cast<int>(all_tiles());
    splits = static_cast<int>(std::min<int64_t>(tiles, blocks_of_channels()));
    splits = static_cast<int>(divide_up(tiles, divide_up(tiles, splits)));
    of_down = QuickDivisor(down), of_blocks = QuickDivisor(channel_blocks);
  }

  // Channels of x of a product: of a part, or of a whole block, of which the tap in the middle is made in halves.
  constexpr int columns() const {
    constexpr int few_units = 6, few_columns = 48, many_columns = 64;
    if (shifts > 1) return part_units * unit_channels;
    return units_of_block() > few_units ? many_columns : few_columns;
  }
  constexpr int steps() const {
    const int run = ((images - 1) * plane_lines + tile_lines / shifts) * line_pixels;
    return static_cast<int>(divide_up(run, step_pixels));
  }
  constexpr int dy_pixels() const { return images * dy_lines * line_pixels; }
  // Zeros behind planes, which the last step reads.
  constexpr int x_zeros() const {
    return std::max(0, steps() * step_pixels + reach_down * line_pixels + reach_across - plane_pixels());
  }
  constexpr int dy_zeros() const { return std::max(0, steps() * step_pixels - dy_pixels()); }
  constexpr int x_bytes() const { return plane_bytes(plane_pixels() + x_zeros()); }
  constexpr int dy_bytes() const { return plane_bytes(dy_pixels() + dy_zeros()); }
  constexpr int stage_bytes() const { return planes() * x_bytes() + shifts * dy_bytes(); }
  // Sums of second lines are joined with those of first ones through shared memory at last.
  constexpr int64_t shared_bytes() const {
    const int64_t joined = int64_t{4} * warpgroups * joined_taps * part_units * unit_channels * (block_units * 4);
    return tile_border + std::max(stages * int64_t{stage_bytes()}, shifts > 1 ? joined : 0);
  }
  int64_t blocks() const { return int64_t{splits} * channel_blocks; }
  int64_t all_tiles() const { return divide_up(batch, images) * down; }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
  // Of 64 rows by 16 terms by the columns, of all tiles and blocks.
  double products() const { return products_of_tile() * static_cast<double>(all_tiles()) * channel_blocks; }

 private:
  static constexpr int plane_bytes(int pixels) {
    return static_cast<int>(round_up(int64_t{pixels} * pixel_bytes, tile_border));
  }
  constexpr double products_of_tile() const { return double{1} * steps() * parts * (shifts + kernel - 1) * kernel; }
  // The tile whose products and rows take the least time.
  void choose_tile() {
    constexpr int most_images = 16;
    const auto all = static_cast<int>(divide_up(out[0], shifts));
    double least = 0;
    GroupedStationarySums best = *this;
    for (int count = 1; count <= all; ++count) {
      set_lines(static_cast<int>(divide_up(all, count)) * shifts, true);
      for (images = 1; images <= (down == 1 ? std::min(batch, most_images) : 1); ++images) {
        dy_lines = images > 1 ? plane_lines : tile_lines / shifts;
        stages = has_box() ? static_cast<int>(std::min<int64_t>(room() / stage_bytes(), max_stages)) : 0;
        if (stages < min_stages) break;
        const double rows = row_cycles * (planes() * plane_pixels() + shifts * dy_pixels());
        const double cycles = cycles_of(products_of_tile() * columns() / 2, rows, all_tiles());
        if (least > 0 && cycles >= least) continue;
        least = cycles, best = *this;
      }
    }
    if (least == 0) best.stages = 0;
    *this = best;
  }
  static constexpr int64_t room() { return max_shared_bytes - tile_border; }
};

inline bool fits_grouped_stationary_sums(const ConvolutionSizes& c) {
  constexpr int max_stride = 2;
  return fits_stationary_images(c, max_stride) && GroupedStationarySums(c).stages >= StationaryImages::min_stages;
}

}  // namespace plimsoll::cuda
