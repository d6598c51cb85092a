#pragma once

// How 3 x 3 convolutions of groups of 24 channels without strides, and their gradients, divide their work on Hopper. No
// CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/grouped_lines.h"

namespace plimsoll::cuda {

// A block has three groups and goes through bands of four lines of results, one after the other. A tile is 8 pixels of
// two lines that lie two apart: a strip of 8 pixels of a band is two tiles. Four lines of one side of a tile's rows, of
// two units of channels each, serve three taps of both tiles.
//
// Lines of the image that is read lie in a ring in shared memory. Stage s of a block has its lines 2 s and 2 s + 1,
// where line 0 is the one above its first band; a band reads three stages, of which the last one belongs to the next
// band, too. Lines outside an image are not copied: threads read zeros elsewhere.
struct GroupedBands {
  static constexpr int kernel = 3, taps = kernel * kernel, group_channels = 24, group_units = 3, block_groups = 3,
                       block_channels = block_groups * group_channels, pixel_bytes = block_channels * 2,
                       weight_row_bytes = taps * group_channels * 2, group_weight_bytes = 24 * weight_row_bytes;
  static constexpr int band_lines = 4, strip_pixels = 8, stage_lines = 2, min_stages = 5, max_stages = 16,
                       result_bands = 2, max_box = 256;
  // Zeros that are read in place of any pixel under the taps, and places for results that nobody reads.
  static constexpr int zero_bytes = 512, spare_bytes = 512;
  // Three warpgroups compute; single threads of a fourth one start copies. The registers are those of a thread.
  static constexpr int warps = 12, computing_threads = warps * 32, threads = computing_threads + 128,
                       computing_registers = 160, copying_registers = 32;
  static constexpr int64_t max_shared_bytes = 231'000,
                           wanted_blocks = 132;  // multiprocessors of an H200

  int batch, lines, pixels;  // lines of an image, and pixels of a line
  int groups, channel_blocks, image_bands, bands, splits, strips;
  int line_bytes, dy_line_bytes = 0, stages = 0;  // bytes of lines in the ring: dy has one for a weight gradient
  QuickDivisor of_blocks, of_image;

  GroupedBands(const ConvolutionSizes& c, bool is_dw)
      : batch(static_cast<int>(c.batch)), lines(c.x[0]), pixels(c.x[1]), groups(c.groups) {
    channel_blocks = static_cast<int>(divide_up(groups, block_groups));
    image_bands = static_cast<int>(divide_up(lines, band_lines));
    bands = batch * image_bands;
    splits = static_cast<int>(std::clamp<int64_t>(wanted_blocks / channel_blocks, 1, bands));
    strips = static_cast<int>(divide_up(pixels, strip_pixels));
    line_bytes = in_ring(pixels + (copies_lines() ? 1 : kernel - 1));
    if (is_dw) dy_line_bytes = in_ring(strips * strip_pixels);
    const int64_t stage_bytes = stage_lines * int64_t{line_bytes + dy_line_bytes};
    stages = static_cast<int>(std::clamp<int64_t>((max_shared_bytes - shared_bytes()) / stage_bytes, 0, max_stages));
    of_blocks = QuickDivisor(channel_blocks), of_image = QuickDivisor(image_bands);
  }

  // Blocks that have all channels copy whole lines as they lie in memory. A pixel of zeros lies before each of them and
  // behind the last one. Other blocks copy boxes of their channels, of which what lies outside the image is zeros.
  constexpr bool copies_lines() const { return groups == block_groups; }
  constexpr int copied_pixels() const { return copies_lines() ? pixels : pixels + kernel - 1; }
  constexpr int copied_dy_pixels() const { return copies_lines() ? pixels : strips * strip_pixels; }
  constexpr int ring_lines() const { return stages * stage_lines; }
  // Pixels that the last strip of a line reads beyond the ring's last line.
  static constexpr int pixels_behind = strip_pixels + 1;
  constexpr int dy_ring_at() const {
    return static_cast<int>(round_up(ring_lines() * line_bytes + pixels_behind * pixel_bytes, 128));
  }
  constexpr int weights_at() const { return dy_ring_at() + ring_lines() * dy_line_bytes; }
  // Results of a band on their way to memory. A weight gradient has neither weights nor results.
  constexpr bool is_dw() const { return dy_line_bytes > 0; }
  constexpr int result_bytes() const {
    return static_cast<int>(round_up(int64_t{band_lines} * pixels * pixel_bytes, 128));
  }
  constexpr int results_at() const {
    constexpr int weight_bytes = static_cast<int>(round_up(block_groups * int64_t{group_weight_bytes}, 128));
    return weights_at() + (is_dw() ? 0 : weight_bytes);
  }
  constexpr int zeros_at() const { return results_at() + (is_dw() ? 0 : result_bands * result_bytes()); }
  constexpr int spare_at() const { return zeros_at() + zero_bytes; }
  // In the end the sums of warps that have the same weights meet in shared memory.
  static constexpr int sums_of_warp = 84, joined_bytes = warps / 2 * sums_of_warp * 32 * 4;
  constexpr int64_t shared_bytes() const {
    return std::max<int64_t>(spare_at() + spare_bytes, is_dw() && stages > 0 ? joined_bytes : 0);
  }
  int64_t blocks() const { return int64_t{splits} * channel_blocks; }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }

 private:
  // Of so many pixels; boxes begin at borders of 128 bytes.
  constexpr int in_ring(int of_pixels) const {
    return static_cast<int>(copies_lines() ? of_pixels * pixel_bytes : round_up(int64_t{of_pixels} * pixel_bytes, 128));
  }
};

// The bands of a block: `count` of them from `first` on.
struct BandBlock {
  int first_group, split, first, count;

  constexpr BandBlock(const GroupedBands& p, int block) {
    split = p.of_blocks.quotient(block);
    first_group = (block - split * p.channel_blocks) * GroupedBands::block_groups;
    first = static_cast<int>(int64_t{split} * p.bands / p.splits);
    count = static_cast<int>((int64_t{split} + 1) * p.bands / p.splits) - first;
  }
  constexpr int all_lines() const { return count * GroupedBands::band_lines + GroupedBands::kernel - 1; }
  constexpr int stages() const { return all_lines() / GroupedBands::stage_lines; }
};

// Where a line of a block lies, counted from the one above its first band.
struct BandLine {
  int image, line;
  bool is_there, has_results;  // has_results: it is a line of the block's bands, of which dy is read

  constexpr BandLine(const GroupedBands& p, const BandBlock& block, int of_block) {
    constexpr int lines = GroupedBands::band_lines;
    const int band = std::clamp((of_block + lines - 1) / lines - 1, 0, block.count - 1), of_all = block.first + band;
    image = p.of_image.quotient(of_all);
    line = (of_all - image * p.image_bands) * lines + of_block - 1 - band * lines;
    is_there = line >= 0 && line < p.lines;
    has_results = is_there && of_block > 0 && of_block <= block.count * lines;
  }
};

// 16-bit floats in more than one group of 24 channels of both images, 3 x 3 taps without strides and dilations, images
// that stay as large.
inline bool fits_grouped_bands(const ConvolutionSizes& c, bool is_dw) {
  constexpr int64_t most = int64_t{1} << 30;
  constexpr int channels = GroupedBands::group_channels;
  if (c.groups < 2 || c.x_channels != channels || c.y_channels != channels || c.weights() >= most) return false;
  for (int d = 0; d < 2; ++d)
    if (c.kernel[d] != GroupedBands::kernel || c.dilation[d] != 1 || c.stride[d] != 1 || c.pad[d] != 1 ||
        c.x[d] != c.y[d])
      return false;
  if (c.batch * (c.x[0] + GroupedBands::band_lines) * c.x[1] >= most) return false;
  if (c.x[1] + GroupedBands::strip_pixels > GroupedBands::max_box) return false;
  return GroupedBands(c, is_dw).stages >= GroupedBands::min_stages;
}

}  // namespace plimsoll::cuda
