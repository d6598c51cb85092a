#pragma once

// How convolutions of one tap whose pixels lie in memory as they come divide their work on Hopper. No CUDA here: plans
// are made where there is none.

#include "kernels/cuda/conv/convolution_sizes.h"
#include "kernels/division.h"

#include <algorithm>

namespace plimsoll::cuda {

// Blocks take equal shares of chunks of pixels, whose bytes lie one behind the other.
struct PixelChunks {
  static constexpr int warps = 8, computing_threads = 32 * warps, threads = computing_threads + 64, product_pixels = 16,
                       border_bytes = 128, slack_bytes = 1024;
  static constexpr int64_t processors = 132, most_shared_bytes = 227 << 10;

  int64_t pixels;
  int chunk_pixels = 0, stages = 0;
  int64_t chunks = 0, splits = 0;

 protected:
  explicit PixelChunks(int64_t pixels) : pixels(pixels) {}
  void divide(int of_chunk) {
    chunk_pixels = of_chunk;
    chunks = divide_up(pixels, chunk_pixels);
    splits = std::clamp<int64_t>(chunks, 1, processors);
  }
};

// conv and conv_dx: a warp makes 16 pixels at a time, and has all weights in its registers.
struct PointwiseChunks : PixelChunks {
  static constexpr int most_stages = 8, result_stages = 3, most_steps = 7, most_tiles = 7, few_steps = 2,
                       most_tiles_of_few = 14;
  static constexpr int of_warp = 2;  // products of a warp beside each other

  int from, to;      // channels
  int steps, tiles;  // of 16 channels that are read, and of 8 that are made
  int stage_bytes = 0, result_bytes = 0;

  PointwiseChunks(int64_t pixels, int from, int to)
      : PixelChunks(pixels),
        from(from),
        to(to),
        steps(static_cast<int>(divide_up(from, 16))),
        tiles(static_cast<int>(divide_up(to, 8))) {
    divide(of_warp * warps * product_pixels);
    stage_bytes = chunk_pixels * from * 2, result_bytes = chunk_pixels * to * 2;
    const int64_t left = most_shared_bytes - border_bytes - slack_bytes - result_stages * (int64_t{result_bytes} + 16);
    stages = static_cast<int>(std::clamp<int64_t>(left / (stage_bytes + 16), 0, most_stages));
  }
  bool valid() const {
    return stages >= 2 && steps <= most_steps && tiles <= (steps <= few_steps ? most_tiles_of_few : most_tiles);
  }
  // Counts of steps and of tiles that kernels exist for.
  constexpr int made_steps() const { return steps <= 2 ? 2 : steps <= 4 ? steps : most_steps; }
  constexpr int made_tiles() const {
    constexpr int few_tiles = 4;
    return tiles <= few_tiles && steps != 3 ? few_tiles : tiles <= most_tiles ? most_tiles : most_tiles_of_few;
  }
  int64_t shared_bytes() const {
    return border_bytes + slack_bytes + int64_t{stages} * (stage_bytes + 16) +
           result_stages * (int64_t{result_bytes} + 16);
  }
};

// conv_dw: the terms of products are 16 pixels. The rows of sums are the channels of the tensor that has more of them.
// Warps have some rows and columns of all sums each, or take turns of the pixels.
struct PointwiseChunkSums : PixelChunks {
  static constexpr int most_stages = 8, tile = 16, most_warp_rows = 4, most_warp_columns = 3;  // in tiles

  int rows, columns;  // channels
  bool rows_are_dy;
  int warp_rows, warp_columns;  // in tiles
  int row_parts, column_parts, turns;
  int row_bytes = 0, stage_bytes = 0;  // of a chunk

  PointwiseChunkSums(int64_t pixels, int x_channels, int y_channels)
      : PixelChunks(pixels),
        rows(std::max(x_channels, y_channels)),
        columns(std::min(x_channels, y_channels)),
        rows_are_dy(y_channels >= x_channels) {
    const auto row_tiles = static_cast<int>(divide_up(rows, tile)),
               column_tiles = static_cast<int>(divide_up(columns, tile));
    warp_rows = row_tiles <= 2 ? 2 : most_warp_rows;
    row_parts = static_cast<int>(divide_up(row_tiles, warp_rows));
    warp_columns = column_tiles == 1 ? 1 : 2;
    if (row_parts * divide_up(column_tiles, warp_columns) > warps) warp_columns = most_warp_columns;
    column_parts = static_cast<int>(divide_up(column_tiles, warp_columns));
    turns = warps / std::max(row_parts * column_parts, 1);
    if (turns == 0) return;
    constexpr int most_chunk = 256, wanted_bytes = 40 << 10;
    int of_chunk = most_chunk;
    while (of_chunk > product_pixels * turns && of_chunk * (rows + columns) * 2 > wanted_bytes) of_chunk /= 2;
    divide(of_chunk);
    row_bytes = chunk_pixels * rows * 2;
    stage_bytes = chunk_pixels * (rows + columns) * 2;
    stages = static_cast<int>(
        std::clamp<int64_t>((most_shared_bytes - border_bytes - slack_bytes) / (stage_bytes + 16), 0, most_stages));
  }
  bool valid() const { return turns > 0 && stages >= 2; }
  constexpr int weights() const { return rows * columns; }
  int64_t workspace_bytes() const { return splits * int64_t{weights()} * 4; }
  // Sums of each turn lie there in the end.
  int64_t shared_bytes() const {
    return border_bytes + slack_bytes + std::max(int64_t{stages} * (stage_bytes + 16), int64_t{turns} * weights() * 4);
  }
};

inline bool is_pointwise(const ConvolutionSizes& c) {
  if (c.groups != 1 || c.taps() != 1 || c.x_channels % 2 != 0 || c.y_channels % 2 != 0) return false;
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] != 1 || c.pad[d] != 0 || c.x[d] != c.y[d]) return false;
  return true;
}
inline int64_t pixels_of(const ConvolutionSizes& c) { return c.batch * c.x[0] * c.x[1]; }

// Even channels, of which there are no multiples of 8 on one side: others are products that libraries are good at. An
// even number of pixels has whole words of 16 bytes.
inline bool fits_pointwise_chunks(const ConvolutionSizes& c, bool gradient) {
  constexpr int64_t most = int64_t{1} << 40;
  if (!is_pointwise(c) || (c.x_channels % 8 == 0 && c.y_channels % 8 == 0)) return false;
  const int64_t pixels = pixels_of(c);
  return pixels % PixelChunks::product_pixels == 0 && pixels < most &&
         PointwiseChunks(pixels, gradient ? c.y_channels : c.x_channels, gradient ? c.x_channels : c.y_channels)
             .valid();
}
inline bool fits_pointwise_chunk_sums(const ConvolutionSizes& c) {
  constexpr int64_t most = int64_t{1} << 40;
  if (!is_pointwise(c) || (c.x_channels % 16 == 0 && c.y_channels % 16 == 0)) return false;
  const int64_t pixels = pixels_of(c);
  return pixels % PixelChunks::product_pixels == 0 && pixels < most &&
         PointwiseChunkSums(pixels, c.x_channels, c.y_channels).valid();
}

}  // namespace plimsoll::cuda
