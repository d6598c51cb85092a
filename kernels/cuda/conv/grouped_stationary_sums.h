#pragma once

// How weight gradients of 3 x 3 convolutions of groups, whose sums stay in registers, divide their work on Hopper.

#include "kernels/cuda/conv/stationary_images.h"

namespace plimsoll::cuda {

// A product multiplies 16 pixels of dy by the 16 pixels of x that lie under them for one tap. Lines of dy have as many
// pixels as lines of x, with zeros at their ends, so that both images are runs of pixels. A block adds all its tiles up
// in registers, which gives a part of dw.
struct GroupedStationarySums : StationaryImages {
  static constexpr int step_pixels = 16;

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

  // Channels of x that a product has: those of a part, or of the whole block. In the latter case each warpgroup
  // computes half of the columns of the middle tap.
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
  // Pixels of zeros behind planes, which the last step reads.
  constexpr int x_zeros() const {
    return std::max(0, steps() * step_pixels + reach_down * line_pixels + reach_across - plane_pixels());
  }
  constexpr int dy_zeros() const { return std::max(0, steps() * step_pixels - dy_pixels()); }
  constexpr int x_bytes() const { return plane_bytes(plane_pixels() + x_zeros()); }
  constexpr int dy_bytes() const { return plane_bytes(dy_pixels() + dy_zeros()); }
  constexpr int stage_bytes() const { return planes() * x_bytes() + shifts * dy_bytes(); }
  // In the end the sums of second lines are added to those of first lines through shared memory.
  constexpr int64_t shared_bytes() const {
    const int64_t joined = int64_t{4} * warpgroups * taps * part_units * unit_channels * (block_units * 4);
    return tile_border + std::max(stages * int64_t{stage_bytes()}, shifts > 1 ? joined : 0);
  }
  int64_t blocks() const { return int64_t{splits} * channel_blocks; }
  int64_t all_tiles() const { return divide_up(batch, images) * down; }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
  // Products of [64, 16] by [16, columns], of all blocks together, and pixels that the copy engine brings them.
  double products() const { return products_of_tile() * static_cast<double>(all_tiles()) * channel_blocks; }
  double pixels_read() const {
    return (double{1} * planes() * plane_pixels() + shifts * dy_pixels()) * static_cast<double>(all_tiles()) *
           channel_blocks;
  }

 private:
  static constexpr int plane_bytes(int pixels) {
    return static_cast<int>(round_up(int64_t{pixels} * pixel_bytes, tile_border));
  }
  constexpr double products_of_tile() const { return double{1} * steps() * parts * (shifts + kernel - 1) * kernel; }
  // Chooses the tile that takes the fewest cycles.
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
