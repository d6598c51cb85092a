#pragma once

// How depthwise convolutions divide their work. No CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/convolution_sizes.h"

namespace plimsoll::cuda {

// Weight gradients of any depthwise convolution: a thread has some channels and up to 8 taps of a row of the kernel,
// and blocks take turns of dy's rows.
struct DepthwiseRows {
  static constexpr int threads = 256, held_taps = 8, most_tap_rows = 8;
  static constexpr int64_t wanted_blocks = 1056;

  int length, channel_threads, channel_blocks;  // channels of a thread; threads across, and blocks
  int tap_columns, tap_rows, block_tap_rows, tap_blocks, pixel_threads;
  int64_t lines, splits;

  DepthwiseRows(const ConvolutionSizes& c, int element_bytes) {
    length = c.groups % (16 / element_bytes) == 0 ? 16 / element_bytes : 1;
    channel_threads = length == 1 ? 32 : 8;
    channel_blocks = static_cast<int>(divide_up(c.groups, length * channel_threads));
    tap_columns = static_cast<int>(divide_up(c.kernel[1], held_taps));
    tap_rows = c.kernel[0] * tap_columns;
    block_tap_rows = std::min(tap_rows, most_tap_rows);
    tap_blocks = static_cast<int>(divide_up(tap_rows, block_tap_rows));
    pixel_threads = threads / channel_threads / block_tap_rows;
    lines = c.batch * c.y[0];
    splits = std::clamp<int64_t>(wanted_blocks / (int64_t{channel_blocks} * tap_blocks), 1, lines);
    splits = divide_up(lines, divide_up(lines, splits));
  }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
};

// Depthwise convolutions with a stride of 2 by 3 x 3 and 5 x 5 taps in a 16-bit float, in 32-bit arithmetic: a thread
// goes down neighbouring columns of windows of some channels with the weights, or their sums, in registers. Windows of
// dx are 2 x 2 pixels.
struct DepthwiseWindows {
  static constexpr int threads = 256, stride = 2, block_channels = 32, across = 2;  // windows beside each other

  int channel_threads, column_threads;  // threads across channels, and beside each other
  int vectors, vector_blocks;           // of a thread's channels
  int first[2], count[2];               // windows; the first one's number
  int rows, bands;                      // windows that a thread goes down
  int image_columns;                    // of a thread's windows
  int64_t columns, column_blocks, items, splits;

  static constexpr int vector_of(int kernel) { return kernel == 3 ? 4 : 2; }

  DepthwiseWindows(const ConvolutionSizes& c, bool gradient, int wanted_rows = 16, int64_t wanted_blocks = 1 << 24) {
    const int vector = vector_of(c.kernel[0]);
    channel_threads = block_channels / vector;
    column_threads = threads / channel_threads;
    vectors = c.groups / vector;
    vector_blocks = static_cast<int>(divide_up(vectors, channel_threads));
    for (int d = 0; d < 2; ++d) {
      first[d] = gradient ? c.pad[d] / stride : 0;
      count[d] = gradient ? (c.x[d] - 1 + c.pad[d]) / stride - first[d] + 1 : c.y[d];
    }
    bands = static_cast<int>(divide_up(count[0], wanted_rows));
    rows = static_cast<int>(divide_up(count[0], bands));
    bands = static_cast<int>(divide_up(count[0], rows));
    image_columns = static_cast<int>(divide_up(count[1], across));
    columns = c.batch * image_columns;
    column_blocks = divide_up(columns, column_threads);
    items = column_blocks * bands;
    splits = std::clamp<int64_t>(wanted_blocks / vector_blocks, 1, items);
    splits = divide_up(items, divide_up(items, splits));
  }
  int64_t blocks() const { return splits * vector_blocks; }
};

// Weight gradients: blocks take turns of the items.
struct DepthwiseWeightWindows : DepthwiseWindows {
  explicit DepthwiseWeightWindows(const ConvolutionSizes& c, int wanted_rows = 14, int64_t wanted_blocks = 396)
      : DepthwiseWindows(c, false, wanted_rows, wanted_blocks) {}
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
};

inline bool is_depthwise(const ConvolutionSizes& c) { return c.groups > 1 && c.x_channels == 1 && c.y_channels == 1; }

inline constexpr int max_depthwise_taps = 1024;
inline constexpr int max_depthwise_weights = 12288;  // f32, of a block in shared memory

// Counts are 32 bits wide, offsets of tensors 64.
inline bool fits_depthwise(const ConvolutionSizes& c) {
  constexpr int64_t most = int64_t{1} << 30;
  if (!is_depthwise(c) || c.taps() > max_depthwise_taps || c.weights() >= most || c.batch >= most) return false;
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] > max_classes || std::max(c.x[d], c.y[d]) > (1 << 24) || c.dilation[d] > 4096 ||
        c.pad[d] > (1 << 20) || c.pad[d] < 0)
      return false;
  return c.batch * c.x[0] < most && c.batch * c.y[0] < most;
}

// 3 x 3 and 5 x 5 with a stride of 2 in a 16-bit float.
inline bool fits_depthwise_windows(const ConvolutionSizes& c) {
  if (!fits_depthwise(c) || c.groups % 4 != 0) return false;
  const int k = c.kernel[0];
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] != DepthwiseWindows::stride || c.dilation[d] != 1) return false;
  return c.kernel[1] == k && (k == 3 || k == 5) && DepthwiseWindows(c, false, 1).items < (int64_t{1} << 30) &&
         DepthwiseWindows(c, true, 1).items < (int64_t{1} << 30);
}

}  // namespace plimsoll::cuda
