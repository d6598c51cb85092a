#pragma once

// How weight-stationary 3 x 3 convolutions of one or more groups, and their weight gradients, lay images out in shared
// memory on Hopper. This file has no CUDA: plans are made where there is none.

#include "kernels/cuda/conv/grouped_lines.h"

namespace plimsoll::cuda {

// A block takes whole groups of up to 64 channels together, and goes through all images. The copy engine brings tiles
// of images to stages of shared memory. A stage holds planes, in which pixels follow each other without gaps, so that a
// tap is a fixed distance in pixels. The zeros before a line also serve as the zeros behind the line before it.
//
// A product has 64 rows.
// - Groups of 40 to 64 channels use one row for each channel, and so do all groups with a stride of 2. With a stride of
//   2 there are four planes, each with every second pixel of every second line.
// - Groups of up to 32 channels without strides are joined into two parts of up to 32 channels, one for each warpgroup.
//   A product of a part computes two neighbouring lines at once: its second 32 rows are the same channels one line
//   further down. The even and the odd lines are two planes. This needs a third fewer products. Boxes of both parts
//   have rows of 128 bytes, even where the groups fill one part and the other one lies outside the image.
// - For an input gradient with a stride of 2 each column of a product stands for a square of 2 x 2 results, which are
//   computed one after the other. One of them has one tap, two have two taps each, and the last has four.
struct StationaryImages {
  static constexpr int kernel = 3, block_units = 8, warpgroups = 2, pixel_bytes = 128, max_box = 256, max_stages = 8,
                       tile_border = 1024, min_stages = 2;
  static constexpr int taps = kernel * kernel;
  // Two warpgroups compute; single threads of a third one start copies. The registers are those of a thread; three
  // threads, one of each warpgroup, may have 504 together.
  static constexpr int computing_threads = warpgroups * 128, threads = computing_threads + 128,
                       computing_registers = 240, copying_registers = 24;
  static constexpr int64_t max_shared_bytes = 230'000,
                           wanted_blocks = 132;  // multiprocessors of an H200

  int batch, in[2], out[2], pad[2];  // in: pixels of the image that is read; out: pixels of the result, or squares
  int scale;                         // a column of a product computes scale x scale results
  int span;                          // pixels of the image, each way, under the taps of a result or of a square
  int groups, units;                 // units: of 8 channels, in a group
  int stride, shifts;                // shifts: neighbouring lines that a product computes, 1 or 2
  int planes_down, planes_across;
  int reach_down, reach_across;  // lines and pixels of a plane that taps read beyond the first one
  int parts, part_units, block_groups, channel_blocks;
  int tile_lines = 0, down = 0, images = 1;  // lines of a tile; tiles down an image; images of a tile
  int line_pixels = 0, plane_lines = 0;      // of one image in a plane, with the pixels around the tile
  int tiles = 0, splits = 0, stages = 0;     // splits: blocks that share the tiles
  QuickDivisor of_down;

  StationaryImages(const ConvolutionSizes& c, bool gradient)
      : batch(static_cast<int>(c.batch)), groups(c.groups), units(c.x_channels / unit_channels), stride(c.stride[0]) {
    const bool makes_squares = gradient && stride > 1;
    scale = makes_squares ? stride : 1, span = makes_squares ? 2 : kernel;
    if (makes_squares) stride = 1;
    for (int d = 0; d < 2; ++d) {
      in[d] = gradient ? c.y[d] : c.x[d];
      out[d] = gradient ? static_cast<int>(divide_up(c.x[d], scale)) : c.y[d];
      pad[d] = makes_squares ? 0 : gradient ? kernel - 1 - c.pad[d] : c.pad[d];
    }
    shifts = makes_squares || stride > 1 || units > block_units / 2 ? 1 : 2;
    planes_down = std::max(stride, shifts), planes_across = stride;
    reach_down = (shifts + span - 2) / planes_down, reach_across = (span - 1) / planes_across;
    parts = shifts;
    const int part_groups = block_units / shifts / units;
    part_units = part_groups * units;
    block_groups = part_groups * parts;
    channel_blocks = static_cast<int>(divide_up(groups, block_groups));
  }

  constexpr int units_of_block() const { return block_groups * units; }
  constexpr int channels_of_block() const { return units_of_block() * unit_channels; }
  constexpr int channels() const { return groups * units * unit_channels; }
  // Parts of a block that have channels.
  constexpr int parts_there() const { return channels() > part_units * unit_channels ? parts : 1; }
  constexpr int planes() const { return planes_down * planes_across; }
  // Pixels of a plane of all images of a stage, and of one image.
  constexpr int image_pixels() const { return plane_lines * line_pixels; }
  constexpr int plane_pixels() const { return images * image_pixels(); }

 protected:
  // Cycles that the copy engine needs for the 128 bytes of a pixel, and cycles that each tile costs besides.
  static constexpr double row_cycles = 7, tile_cycles = 300;

  // Pixels of zeros between two lines (d = 1) or two images (d = 0) that serve both.
  constexpr int shared_zeros(int d) const {
    if (stride > 1) return 0;
    return std::max(0, std::min(pad[d], out[d] + span - 1 - pad[d] - in[d]));
  }
  // Tiles have so many lines. Images that are whole in a tile share the zeros between them.
  void set_lines(int lines, bool is_whole) {
    tile_lines = lines;
    down = static_cast<int>(divide_up(out[0], tile_lines));
    plane_lines = tile_lines / shifts + reach_down;
    if (stride > 1 || !is_whole || down > 1) return;
    plane_lines = std::min(plane_lines, static_cast<int>(divide_up(out[0] + span - 1 - shared_zeros(0), shifts)));
  }
  constexpr bool has_box() const {
    return line_pixels * planes_across <= max_box && plane_lines * planes_down <= max_box;
  }
  constexpr int64_t blocks_of_channels() const { return std::max<int64_t>(1, wanted_blocks / channel_blocks); }
  // Cycles of the block with the most tiles. Products and copies of a tile overlap, but for a part of the shorter of
  // the two; the block waits for its first copies.
  double cycles_of(double products, double rows, int64_t all_tiles) const {
    constexpr double exposed = 0.2;
    const auto of_block = static_cast<double>(divide_up(all_tiles, std::min(all_tiles, blocks_of_channels())));
    return (std::max(products, rows) + exposed * std::min(products, rows) + tile_cycles) * of_block + rows;
  }
};

// 3 x 3 taps without dilation, strides up to max_stride, in groups that have equally many channels in both images: a
// multiple of 8, up to 64. Tensors are 16-bit floats.
inline bool fits_stationary_images(const ConvolutionSizes& c, int max_stride) {
  constexpr int most_channels = StationaryImages::block_units * unit_channels, most_pixels = 1 << 14;
  constexpr int64_t most = int64_t{1} << 30;
  if (c.groups < 1 || c.x_channels != c.y_channels || c.x_channels % unit_channels != 0) return false;
  if (c.x_channels > most_channels || c.weights() >= most) return false;
  for (int d = 0; d < 2; ++d) {
    if (c.kernel[d] != StationaryImages::kernel || c.dilation[d] != 1) return false;
    if (c.stride[d] != c.stride[0] || c.stride[d] > max_stride) return false;
    if (c.pad[d] >= c.kernel[d] || std::max(c.x[d], c.y[d]) > most_pixels) return false;
  }
  constexpr int around = 2 * StationaryImages::kernel;
  return c.batch * (c.x[0] + around) * (c.x[1] + around) < most;
}

}  // namespace plimsoll::cuda
