#pragma once

// How depthwise convolutions along lines divide their work. No CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/depthwise_sizes.h"

namespace plimsoll::cuda {

// Depthwise convolutions without strides and dilations by any rectangle of taps, of any channels. A thread has some
// channels and goes along the side of the rectangle that has more taps, whose lines are cut into pieces of `held` taps.
struct DepthwiseLanes {
  static constexpr int max_vector_threads = 32;
  static constexpr int helds[] = {3, 5, 6, 7};

  int length, vectors, vector_threads, vector_blocks;  // channels of a thread; their vectors, of a block, and blocks
  int along, beside;                                   // dimensions
  int held, tap_columns, tap_rows;                     // taps of a piece; pieces of a line, and of the rectangle

  explicit DepthwiseLanes(const ConvolutionSizes& c) {
    length = c.groups % 4 == 0 ? 4 : (c.groups % 2 == 0 ? 2 : 1);
    vectors = c.groups / length;
    spread(max_vector_threads);
    along = c.kernel[0] >= c.kernel[1] ? 0 : 1;
    beside = 1 - along;
    // The shortest pieces of which no more are needed than of the longest.
    const int taps = c.kernel[along];
    held = helds[3];
    for (int count : {helds[2], helds[1], helds[0]})
      if (divide_up(taps, count) == divide_up(taps, helds[3])) held = count;
    tap_columns = static_cast<int>(divide_up(taps, held));
    tap_rows = c.kernel[beside] * tap_columns;
  }
  // Over as few blocks of up to so many threads as there can be, and over their threads evenly.
  void spread(int most_threads) {
    vector_blocks = static_cast<int>(divide_up(vectors, most_threads));
    vector_threads = static_cast<int>(divide_up(vectors, vector_blocks));
    vector_blocks = static_cast<int>(divide_up(vectors, vector_threads));
  }
};

// y and dx: a thread makes strips of neighbouring pixels, which are 7 because images are 7, 14, 28 and 56 pixels wide.
// Of dx the taps are turned round.
struct DepthwiseLines : DepthwiseLanes {
  static constexpr int threads = 128, strip = 7;
  static constexpr int pad_channels = 4;  // of a tap's weights in shared memory, so that taps are in different banks
  static constexpr int64_t wanted_blocks = 660;  // that are on the card together

  int in[2], out[2], first[2], taps[2];  // first: of the pixels under the first result
  int strips, block_strips;              // of a line; strips that a block makes at once
  int64_t items, splits;

  DepthwiseLines(const ConvolutionSizes& c, bool gradient) : DepthwiseLanes(c) {
    while (vector_threads > 1 && weight_floats() > max_depthwise_weights) spread(vector_threads - 1);
    for (int d = 0; d < 2; ++d) {
      in[d] = gradient ? c.y[d] : c.x[d];
      out[d] = gradient ? c.x[d] : c.y[d];
      first[d] = gradient ? c.pad[d] - c.kernel[d] + 1 : -c.pad[d];
      taps[d] = c.kernel[d];
    }
    strips = static_cast<int>(divide_up(out[along], strip));
    block_strips = threads / vector_threads;
    items = c.batch * strips * out[beside];
    const int64_t rounds = divide_up(items, block_strips);
    splits = std::clamp<int64_t>(wanted_blocks / vector_blocks, 1, std::max<int64_t>(rounds, 1));
    splits = std::max<int64_t>(divide_up(rounds, divide_up(rounds, splits)), 1);
  }
  constexpr int block_channels() const { return vector_threads * length; }
  constexpr int weight_pitch() const { return block_channels() + pad_channels; }
  // Of a block, with zeros behind the last tap of a line.
  constexpr int64_t weight_floats() const { return int64_t{weight_pitch()} * tap_rows * held; }
  constexpr int64_t blocks() const { return splits * vector_blocks; }
};

// dw: a thread has the sums of a piece of taps, and goes along segments of dy's lines. Blocks leave parts, which are
// added up.
struct DepthwiseLineWeights : DepthwiseLanes {
  static constexpr int threads = 256, max_tap_rows = 4, max_segment = 64, min_segment = 16;
  static constexpr int64_t wanted_blocks = 256, wanted_threads = 32768;

  int block_tap_rows, tap_blocks, pixel_threads;  // pieces of taps of a block
  int segments, segment;                          // of a line; pixels
  int64_t items, splits;

  explicit DepthwiseLineWeights(const ConvolutionSizes& c) : DepthwiseLanes(c) {
    tap_blocks = static_cast<int>(divide_up(tap_rows, max_tap_rows));
    block_tap_rows = static_cast<int>(divide_up(tap_rows, tap_blocks));
    pixel_threads = threads / (vector_threads * block_tap_rows);
    const int64_t line_threads = c.batch * c.y[beside] * vectors * tap_rows;
    segments = static_cast<int>(std::clamp<int64_t>(wanted_threads / line_threads, divide_up(c.y[along], max_segment),
                                                    divide_up(c.y[along], min_segment)));
    segment = static_cast<int>(divide_up(c.y[along], segments));
    items = c.batch * segments * c.y[beside];
    splits =
        std::clamp<int64_t>(wanted_blocks / (int64_t{vector_blocks} * tap_blocks), 1, divide_up(items, pixel_threads));
  }
  constexpr int64_t blocks() const { return splits * vector_blocks * tap_blocks; }
  constexpr int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
};

// Lines of pixels are less than 2^31 bytes long.
inline bool fits_depthwise_lines(const ConvolutionSizes& c) {
  constexpr int64_t most = int64_t{1} << 30, most_of_line = int64_t{1} << 29;
  if (!fits_depthwise(c)) return false;
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] != 1 || c.dilation[d] != 1) return false;
  if (int64_t{std::max(c.x[1], c.y[1])} * c.groups >= most_of_line) return false;
  return DepthwiseLines(c, false).items < most && DepthwiseLines(c, true).items < most &&
         DepthwiseLineWeights(c).items < most;
}

}  // namespace plimsoll::cuda
