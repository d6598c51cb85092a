#pragma once

// How depthwise convolutions with sparse operands divide their work on Hopper. No CUDA here: plans are made where there
// is none.

#include "kernels/cuda/conv/box_span.h"
#include "kernels/cuda/conv/depthwise_planes.h"

namespace plimsoll::cuda {

// Columns of results, or of dy for conv_dw, are divided into strips of 8. A tile has some columns of some images side
// by side, in 8 places for strips: an image takes a power of two of them. A pixel's 32 channels are 64 bytes of shared
// memory, as the copy engine puts them there, and zeros lie where taps read outside the image.
struct SparseTiles {
  static constexpr int block_channels = 32, pixel_bytes = 64;
  static constexpr int strip = 8, tile_strips = 8, tiles_at_once = 2;
  static constexpr int turn = 8, half_turn = turn / 2;  // pixels after which units are at the same banks again
  static constexpr int border_bytes = 1024, most_shared_bytes = 227 << 10;
  static constexpr int64_t processors = 132;  // of an H100 and an H200

  int channels, channel_blocks;
  int kernel, stride;
  bool gradient;
  int out[2], in[2], first[2];  // pixels; first: of the pixels that the first result reads
  int width, column_tiles;      // result columns of a tile
  int strips, log_places;       // of an image in a tile; places for these: 2 to that power
  int images;                   // of a tile
  BoxSpan across;
  int64_t tiles, tile_pairs;
  uint32_t all_bytes[2] = {0x3210, 0x3210};  // selectors of PRMT

  SparseTiles(const ConvolutionSizes& c, bool is_gradient)
      : channels(c.groups),
        channel_blocks(static_cast<int>(divide_up(channels, block_channels))),
        kernel(c.kernel[0]),
        stride(c.stride[0]),
        gradient(is_gradient),
        across(0, 0, 0, false) {
    for (int d = 0; d < 2; ++d) {
      out[d] = gradient ? c.x[d] : c.y[d];
      in[d] = gradient ? c.y[d] : c.x[d];
      first[d] = gradient ? c.pad[d] - (kernel - 1) : -c.pad[d];
    }
    column_tiles = static_cast<int>(divide_up(out[1], strip * tile_strips));
    width = column_tiles == 1 ? out[1] : static_cast<int>(divide_up(divide_up(out[1], column_tiles), strip)) * strip;
    column_tiles = static_cast<int>(divide_up(out[1], width));
    strips = static_cast<int>(divide_up(width, strip));
    log_places = 0;
    while (1 << log_places < strips) ++log_places;
    images = tile_strips >> log_places;
    across = BoxSpan(in[1], first[1], stride * (width - 1) + kernel, column_tiles == 1);
    tiles = divide_up(c.batch, images) * column_tiles;
    tile_pairs = divide_up(tiles, tiles_at_once);
  }

 protected:
  static constexpr int rounded(int value, int to) { return static_cast<int>(divide_up(value, to)) * to; }
  // The least count of pixels from one place to another whose units are half a turn of banks apart.
  static constexpr int half_turned(int least) { return rounded(least + half_turn, turn) - half_turn; }
};

// conv and conv_dx. A block goes down the rows of two tiles at once, with all sums of the rows of results that a row of
// pixels belongs to in registers: a warp has four channels. Blocks with the same 32 channels have equal shares of all
// rows of results, or of the tiles, whichever leaves the busiest fewer rows of pixels.
struct DepthwiseSparse : SparseTiles {
  static constexpr int warps = 8, warp_channels = block_channels / warps;
  static constexpr int computing_threads = warps * 32, threads = computing_threads + 128;
  static constexpr int result_stages = 4, max_stages = 16;

  int second_in, second_out;  // pixels from the first tile of a row to the second one
  int first_zero;             // pixel of a stage
  int stage_bytes, result_bytes, stages;
  int share_rows, splits;     // shares are multiples of these rows of results; parts of all rows
  int64_t shares, most_rows;  // most_rows: of pixels, of the busiest block

  DepthwiseSparse(const ConvolutionSizes& c, bool is_gradient) : SparseTiles(c, is_gradient) {
    second_in = half_turned(images * across.pixels);
    first_zero = rounded(second_in + images * across.pixels, turn);
    stage_bytes = (first_zero + turn) * pixel_bytes;
    second_out = half_turned(images * width);
    result_bytes = rounded(second_out + images * width, turn) * pixel_bytes;
    splits = static_cast<int>(std::clamp<int64_t>(processors / channel_blocks, 1, std::max<int64_t>(rows(), 1)));
    const int64_t of_tiles = divide_up(tile_pairs, splits) * out[0], of_rows = divide_up(rows(), splits) + kernel - 1;
    share_rows = of_tiles <= of_rows ? out[0] : 1;
    shares = rows() / std::max(share_rows, 1);
    splits = static_cast<int>(std::min<int64_t>(splits, std::max<int64_t>(shares, 1)));
    most_rows = std::min(of_tiles, of_rows);
    const int64_t others = border_bytes + result_stages * (result_bytes + 16) + weight_bytes();
    stages = static_cast<int>(std::min<int64_t>(max_stages, (most_shared_bytes - others) / (stage_bytes + 16)));
  }

  int64_t rows() const { return tile_pairs * out[0]; }  // of results
  // Words of two neighbouring weights of each row of taps, the first and the last one with a zero.
  constexpr int weight_bytes() const { return block_channels * kernel * (kernel + 1) * 4; }
  int64_t shared_bytes() const {
    return border_bytes + int64_t{stages} * (stage_bytes + 16) + int64_t{result_stages} * (result_bytes + 16) +
           weight_bytes();
  }
  // Of the busiest block.
  double most_bytes() const {
    return static_cast<double>(most_rows * tiles_at_once * images) * (across.pixels + width) * pixel_bytes;
  }
  int64_t blocks() const { return shares == 0 ? 0 : int64_t{splits} * channel_blocks; }
};

// conv_dw. A block goes down two rows of x at a time, of two tiles, with as many rows of dy as these meet, and has the
// sums of 32 channels in registers. A stage of shared memory has the two rows of x of a step and those of dy, two or
// with a stride of 2 one, that no step before has met. A product's terms are 16 pixels of dy, two strips, in each of 8
// rows; a warp has 8 channels and a part of the pixels.
struct DepthwiseSparseWeights : SparseTiles {
  static constexpr int units = block_channels / unit_channels, parts = 2, warps = units * parts;
  static constexpr int computing_threads = warps * 32, threads = computing_threads + 128;
  static constexpr int product_pixels = 16,
                       part_products = tiles_at_once * tile_strips * strip / product_pixels / parts;
  static constexpr int step_rows = 2, max_stages = 8;
  static constexpr int segments = 4, segment = 14;  // of a tile's row, and their columns, where products turn

  int dy_rows, span;        // of a stage; stages whose rows of dy a step meets
  int first_dy, shift;      // the first row of dy that the first step meets; what pads add to taps (tap_down)
  int second_x, second_dy;  // pixels from the first tile of a row to the second one
  int x_row, dy_row;        // pixels from one row of a stage to the next; behind one of x lie zeros
  int first_zero, first_x;  // pixels of a stage
  int zero_bytes, stage_bytes, stages;  // zero_bytes: of a stage's rows of dy, once more as zeros
  int row_pairs, splits;                // of x; parts of all pairs of rows
  int64_t steps;                        // of all blocks of the same channels

  explicit DepthwiseSparseWeights(const ConvolutionSizes& c) : SparseTiles(c, false) {
    dy_rows = step_rows / stride;
    span = (kernel + 1) / step_rows;
    first_dy = (c.pad[0] + stride - 1) / stride - dy_rows * (span - 1);
    shift = c.pad[0] - stride * ((c.pad[0] + stride - 1) / stride);
    second_x = rounded(images * across.pixels, 2);
    second_dy = rounded(images * width, 2);
    dy_row = half_turned(tiles_at_once * second_dy);
    first_zero = rounded(dy_rows * dy_row, turn);
    first_x = first_zero + turn;
    x_row = rounded(tiles_at_once * second_x, turn) + turn;
    zero_bytes = first_x * pixel_bytes;
    stage_bytes = (first_x + step_rows * x_row) * pixel_bytes;
    stages = static_cast<int>(
        std::min<int64_t>(max_stages, (most_shared_bytes - border_bytes - zero_bytes) / (stage_bytes + 16)));
    row_pairs = static_cast<int>(divide_up(in[0], step_rows));
    steps = tile_pairs * row_pairs;
    splits = static_cast<int>(std::clamp<int64_t>(processors / channel_blocks, 1, std::max<int64_t>(steps, 1)));
  }

  // The tap that a row of x of a step, 0 or 1, meets in the `line`-th row of dy of those the step meets; it may be
  // none.
  constexpr int tap_down(int x_of_step, int line) const { return kernel - 1 + x_of_step + shift - stride * line; }
  // Stages before that of a first step whose rows of dy all lie above the image. x_row: the step's first row of x.
  constexpr int stages_above(int x_row) const {
    const int rows = -first_dy - x_row / step_rows * dy_rows;  // above the image, from the first stage on
    return std::clamp(rows / dy_rows, 0, span - 1);
  }
  // Do products turn (depthwise_turned.cuh)? A tile must be whole segments, whose pixels of x are at different banks.
  constexpr bool turns() const {
    return stride == 1 && kernel > 3 && column_tiles == 1 && images <= segments &&
           width * images == segments * segment && (images == 1 || across.pixels == width);
  }
  // Of the busiest block.
  double most_bytes() const {
    const double tiles_bytes = static_cast<double>(tiles_at_once) * images * pixel_bytes;
    const double dy_bytes = tiles_bytes * width * dy_rows, x_bytes = tiles_bytes * across.pixels * step_rows;
    return static_cast<double>(divide_up(steps, splits)) * (x_bytes + dy_bytes) + (span - 1) * dy_bytes;
  }
  int64_t blocks() const { return int64_t{splits} * channel_blocks; }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
  // Sums of each part for both rows of a step lie there in the end.
  int64_t shared_bytes() const {
    const int64_t sums = int64_t{step_rows} * parts * block_channels * kernel * kernel * 4;
    return border_bytes + std::max(zero_bytes + int64_t{stages} * (stage_bytes + 16), sums);
  }
};

// 3 x 3, 5 x 5 and 7 x 7 in a 16-bit float without strides; weight gradients also of 3 x 3 and 5 x 5 with a stride of
// 2. Rows are counted in 32 bits.
inline bool fits_depthwise_sparse_weights(const ConvolutionSizes& c) {
  if (!fits_depthwise(c) || c.groups % unit_channels != 0) return false;
  const int k = c.kernel[0], stride = c.stride[0];
  if (c.kernel[1] != k || c.stride[1] != stride || c.dilation[0] != 1 || c.dilation[1] != 1) return false;
  if (k != 3 && k != 5 && (k != 7 || stride != 1)) return false;
  return (stride == 1 || stride == 2) && DepthwiseSparseWeights(c).steps < int64_t{1} << 30;
}
inline bool fits_depthwise_sparse(const ConvolutionSizes& c) {
  constexpr int64_t most = int64_t{1} << 30;
  return fits_depthwise_sparse_weights(c) && c.stride[0] == 1 && DepthwiseSparse(c, false).rows() < most &&
         DepthwiseSparse(c, true).rows() < most;
}

}  // namespace plimsoll::cuda
