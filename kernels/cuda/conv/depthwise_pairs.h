#pragma once

// How depthwise convolutions on pairs of channels divide their work on Hopper. No CUDA here: plans are made where there
// is none.

#include "kernels/cuda/conv/box_span.h"
#include "kernels/cuda/conv/depthwise_planes.h"

namespace plimsoll::cuda {

// Without strides; with a stride of 2; a gradient with a stride of 2, of which every second pixel meets the same taps.
enum class PairSteps { One, Two, Half };

// conv and conv_dx. A pixel's 64 channels are a row of 128 bytes of shared memory, 8 channels for each of 8 warps. A
// block goes down the rows of some images side by side, an item, and has all sums of the rows that a row of pixels
// belongs to in registers. A product serves two channels, in strips of 8 results, of which a warp makes 8 at a time.
struct DepthwisePairs {
  static constexpr int block_channels = 64, pixel_bytes = 128, warps = 8;
  static constexpr int computing_threads = warps * 32, threads = computing_threads + 128;
  static constexpr int strip = 8, max_strips = 8, block = 4;  // block: pixels that an operand has side by side
  static constexpr int border_bytes = 1024;                   // of boxes; as many zeros lie where taps read outside
  static constexpr int result_stages = 4, max_stages = 8, most_shared_bytes = 227 << 10;
  static constexpr int64_t processors = 132;  // of an H100 and an H200

  int channels, channel_blocks;
  int width, column_tiles;  // result columns of a tile
  PairSteps steps;
  bool gradient;
  int kernel, pad;                           // pad: above
  uint32_t all_bytes[2] = {0x3210, 0x3210};  // selectors of PRMT
  int out[2], in[2], first[2];               // pixels; first: of the pixels that the first result reads
  int near_tap;                              // of Half: the first tap across of an even result
  int strips, images;                        // strips of an image in a tile; images side by side
  BoxSpan across;
  int rows, row_tiles, image_groups;
  int stage_bytes, result_bytes, stages;
  int64_t items;

  DepthwisePairs(const ConvolutionSizes& c, bool is_gradient)
      : channels(c.groups),
        channel_blocks(static_cast<int>(divide_up(channels, block_channels))),
        steps(c.stride[0] == 1 ? PairSteps::One
              : is_gradient    ? PairSteps::Half
                               : PairSteps::Two),
        gradient(is_gradient),
        kernel(c.kernel[0]),
        pad(c.pad[0]),
        across(0, 0, 0, false) {
    for (int d = 0; d < 2; ++d) {
      out[d] = gradient ? c.x[d] : c.y[d];
      in[d] = gradient ? c.y[d] : c.x[d];
      first[d] = gradient ? c.pad[d] - (kernel - 1) : -c.pad[d];
      if (steps == PairSteps::Half) first[d] = (first[d] + 1) >> 1;
    }
    near_tap = c.pad[1] - 2 * first[1];
    column_tiles = static_cast<int>(divide_up(out[1], strip * max_strips));
    width = column_tiles == 1 ? out[1] : static_cast<int>(divide_up(divide_up(out[1], column_tiles), strip)) * strip;
    column_tiles = static_cast<int>(divide_up(out[1], width));
    strips = static_cast<int>(divide_up(width, strip));
    across = BoxSpan(in[1], first[1], needed_columns(), column_tiles == 1);
    images = static_cast<int>(std::clamp<int64_t>(max_strips / strips, 1, std::max<int64_t>(c.batch, 1)));
    image_groups = static_cast<int>(divide_up(c.batch, images));
    divide_rows(c.batch);
    items = item_count(c.batch, row_tiles);
    stage_bytes = box_bytes(int64_t{images} * across.pixels) + border_bytes;
    result_bytes = box_bytes(int64_t{images} * width);
    const int64_t others = border_bytes + result_stages * (result_bytes + 16) + weight_bytes();
    stages = static_cast<int>(std::min<int64_t>(max_stages, (most_shared_bytes - others) / (stage_bytes + 16)));
  }

  static constexpr int box_bytes(int64_t pixels) {
    return static_cast<int>(divide_up(pixels * pixel_bytes, border_bytes)) * border_bytes;
  }
  constexpr int weight_bytes() const { return block_channels * (kernel * kernel * 2 + 4); }
  int64_t shared_bytes() const {
    return border_bytes + int64_t{stages} * (stage_bytes + 16) + int64_t{result_stages} * (result_bytes + 16) +
           weight_bytes();
  }
  int64_t blocks() const { return std::min(items, processors); }
  // Rows of pixels that the busiest block goes down, and bytes of such a row with one of results.
  double most_rows() const { return rows_of_block(items, rows); }
  double row_bytes() const {
    const double results = steps == PairSteps::One ? 1 : steps == PairSteps::Two ? 0.5 : 2;
    return (across.pixels + results * width) * images * pixel_bytes;
  }
  // Whole products of 16 x 8 x 16 terms of a warp for a row of pixels; half ones take 0.7 of their time.
  double row_products() const {
    constexpr double of_half = 0.7;
    const double of_taps = steps == PairSteps::Half                 ? of_half
                           : steps == PairSteps::Two || kernel == 7 ? 1 + of_half
                                                                    : 1;
    return of_taps * kernel / (steps == PairSteps::Two ? 2 : 1) * (unit_channels / 2);
  }

 private:
  int needed_columns() const {
    switch (steps) {
      case PairSteps::One: return width + kernel - 1;
      case PairSteps::Two: return 2 * (width - 1) + kernel;
      case PairSteps::Half: break;
    }
    return strips * (strip / 2) + block / 2;
  }
  int64_t item_count(int64_t batch, int tiles) const {
    return int64_t{channel_blocks} * divide_up(batch, images) * column_tiles * tiles;
  }
  // An item begins about as late as another row would.
  double rows_of_block(int64_t of_items, int of_results) const {
    const int pixel_rows = steps == PairSteps::One   ? of_results + kernel - 1
                           : steps == PairSteps::Two ? 2 * (of_results - 1) + kernel
                                                     : (of_results + kernel) / 2;
    return static_cast<double>(divide_up(of_items, processors)) * (pixel_rows + 1);
  }
  // Into as many tiles as leave the busiest block the fewest rows.
  void divide_rows(int64_t batch) {
    double least = 0;
    rows = 0;
    for (int tiles = 1; tiles <= std::min(max_row_tiles, out[0]); ++tiles) {
      const int of_tile = static_cast<int>(divide_up(out[0], tiles));
      const double of_block = rows_of_block(item_count(batch, tiles), of_tile);
      if (rows == 0 || of_block < least) least = of_block, rows = of_tile;
    }
    row_tiles = static_cast<int>(divide_up(out[0], std::max(rows, 1)));
  }
  static constexpr int max_row_tiles = 8;
};

// 3 x 3 and 5 x 5 in a 16-bit float without strides or with strides of 2, 7 x 7 without strides.
inline bool fits_depthwise_pairs(const ConvolutionSizes& c) {
  if (!fits_depthwise(c) || c.groups % unit_channels != 0) return false;
  const int k = c.kernel[0], stride = c.stride[0];
  if (c.kernel[1] != k || c.stride[1] != stride || c.dilation[0] != 1 || c.dilation[1] != 1) return false;
  if (k != 3 && k != 5 && (k != 7 || stride != 1)) return false;
  if (stride != 1 && stride != 2) return false;
  constexpr int64_t most = int64_t{1} << 30;
  return DepthwisePairs(c, false).items < most && DepthwisePairs(c, true).items < most;
}

}  // namespace plimsoll::cuda
