#pragma once

// How depthwise convolutions without strides divide their work on Hopper. No CUDA here: plans are made where there is
// none.

#include "kernels/cuda/conv/depthwise_planes.h"

namespace plimsoll::cuda {

// Images lie one below the other in one run of rows, in which zeros follow each image. A block goes down a part of the
// run with 32 channels of some columns: the rows of a step are copied ahead and become planes of one channel
// each, rings that hold a step's rows and those above that its taps reach. A row of a plane has the same row of some
// images side by side, each in `period` columns. Results are made 8 columns at a time, a spot.
struct DepthwiseRuns {
  static constexpr int block_units = 4, slots = block_units * unit_channels;  // slots: planes
  static constexpr int step_rows = 8, spot = 8, most_spots = 8, max_columns = 64;
  static constexpr int64_t processors = 132;  // of an H100 and an H200

  int units, unit_blocks;
  int out[2], in[2], first[2];  // pixels; first: from an out pixel to the first in pixel it reads
  int width, column_tiles;      // out columns of one image in a tile
  int image_spots, image_units,
      image_of_unit;                    // spots and columns / 8 of an image; unit * image_of_unit >> 16: its image
  int period, images, row_period;       // columns of an image in a row of a plane; rows of an image in the run
  int columns, row_units, plane_units;  // of a plane, in units of 8 columns
  int parts;  // of a step, one below the other, which are made at once where a row has few spots
  int64_t run_rows;
  int block_steps, splits;  // steps of a block; parts of the run
  bool gradient;

  DepthwiseRuns(const ConvolutionSizes& c, bool is_gradient, int64_t blocks_of_processor) : gradient(is_gradient) {
    units = c.groups / unit_channels;
    unit_blocks = static_cast<int>(divide_up(units, block_units));
    for (int d = 0; d < 2; ++d) {
      out[d] = gradient ? c.x[d] : c.y[d];
      in[d] = gradient ? c.y[d] : c.x[d];
      first[d] = gradient ? c.pad[d] - (c.kernel[d] - 1) : -c.pad[d];
    }
    row_period = least_period(c, 0);
    width = out[1];
    column_tiles = 1;
    if (least_period(c, 1) <= max_columns) {
      period = rounded(least_period(c, 1), spot);
      images = static_cast<int>(std::min<int64_t>(max_columns / period, c.batch));
    } else {
      const int reach = c.kernel[1] - 1, most = (max_columns - reach) / spot * spot;
      width = rounded(static_cast<int>(divide_up(width, divide_up(width, most))), spot);
      column_tiles = static_cast<int>(divide_up(out[1], width));
      period = rounded(width + reach, spot);
      images = 1;
    }
    image_spots = static_cast<int>(divide_up(width, spot));
    image_units = period / spot;
    image_of_unit = (1 << 16) / image_units + 1;
    columns = images * period;
    row_units = columns / spot;
    plane_units = odd_units(int64_t{ring_rows(c)} * row_units);
    parts = spots() > most_spots / 2 ? 1 : spots() > most_spots / 4 ? 2 : 4;
    run_rows = divide_up(c.batch, images) * row_period;
    const int64_t steps = divide_up(run_rows, step_rows);
    const int64_t wanted = processors * blocks_of_processor / (int64_t{unit_blocks} * column_tiles);
    block_steps = static_cast<int>(divide_up(steps, std::clamp<int64_t>(wanted, 1, std::max<int64_t>(steps, 1))));
    splits = static_cast<int>(divide_up(steps, std::max(block_steps, 1)));
  }

  constexpr int spots() const { return images * image_spots; }
  static constexpr int ring_rows(const ConvolutionSizes& c) { return step_rows + c.kernel[0] - 1; }
  int64_t blocks() const { return int64_t{splits} * unit_blocks * column_tiles; }
  // Of the rows that are copied, and of the planes, in units of 16 bytes.
  constexpr int64_t stage_units() const { return int64_t{step_rows} * columns * block_units; }
  constexpr int64_t planes_units() const { return int64_t{slots} * plane_units; }

 private:
  static constexpr int rounded(int value, int to) { return static_cast<int>(divide_up(value, to)) * to; }
  // Pixels and zeros from one image to the next: behind an image's last pixel come the zeros before the next one's
  // first.
  int least_period(const ConvolutionSizes& c, int d) const {
    const int reach = c.kernel[d] - 1, shared_zeros = std::clamp(-first[d], 0, reach);
    return std::max({out[d] + reach - shared_zeros, std::min(in[d] - first[d], out[d] + reach), out[d]});
  }
};

// conv and conv_dx: results take the place of the pixels they were made of. Behind the planes lie words of two
// neighbouring weights for each plane and once more as zeros, and the planes' biases.
struct DepthwiseOutputRuns : DepthwiseRuns {
  static constexpr int threads = 256, blocks_of_processor = 2;

  DepthwiseOutputRuns(const ConvolutionSizes& c, bool is_gradient)
      : DepthwiseRuns(c, is_gradient, blocks_of_processor) {}
  int64_t shared_bytes(const ConvolutionSizes& c) const {
    return (stage_units() + planes_units()) * 16 + int64_t{slots + 1} * c.kernel[0] * (c.kernel[1] + 1) * 4 +
           int64_t{slots} * 4;
  }
};

// conv_dw: planes of x and behind them of dy, which has no columns but those of spots.
struct DepthwiseWeightRuns : DepthwiseRuns {
  static constexpr int threads = 512;

  int dy_plane_units;

  explicit DepthwiseWeightRuns(const ConvolutionSizes& c)
      : DepthwiseRuns(c, false, 1), dy_plane_units(odd_units(int64_t{step_rows} * spots())) {}
  constexpr int64_t dy_stage_units() const { return int64_t{step_rows} * spots() * spot * block_units; }
  int64_t parts_of_sums() const { return int64_t{splits} * column_tiles; }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return parts_of_sums() * c.weights() * 4; }
  // Sums of 16 x 8 terms for each row of taps lie there in the end.
  int64_t shared_bytes(const ConvolutionSizes& c) const {
    const int64_t units_used = stage_units() + dy_stage_units() + planes_units() + int64_t{slots} * dy_plane_units;
    return std::max(units_used * 16, int64_t{slots} * c.kernel[0] * (16 * 8 * 4));
  }
};

// What depthwise bands take, whose rows and their elements are counted in 32 bits.
inline bool fits_depthwise_runs(const ConvolutionSizes& c) {
  if (!fits_depthwise_bands(c)) return false;
  constexpr int64_t most = int64_t{1} << 30;
  if (int64_t{std::max(c.x[1], c.y[1])} * c.groups >= most) return false;
  for (bool gradient : {false, true}) {
    const DepthwiseOutputRuns p(c, gradient);
    if (p.run_rows >= most || p.blocks() >= most) return false;
  }
  return true;
}

}  // namespace plimsoll::cuda
