#pragma once

// How 3 x 3 depthwise weight gradients by lines as they lie in memory divide their work on Hopper. No CUDA here: plans
// are made where there is none.

#include "kernels/cuda/conv/depthwise_sizes.h"

namespace plimsoll::cuda {

// Lines have all channels, so that pixels need not be whole vectors of 16 bytes. A block takes an equal share of the
// pairs of neighbouring lines of dy; those of a stage come with their lines of x, and the one above and below, as one
// run of bytes each. A thread has two channels of a strip of a pair of lines, and the sums of these channels' taps.
struct DepthwisePacked {
  static constexpr int kernel = 3, taps = kernel * kernel;
  static constexpr int max_threads = 576, copying_threads = 32;
  static constexpr int max_stages = 4, most_shared_bytes = 227 << 10, border_bytes = 128;
  static constexpr int64_t processors = 132;  // of an H100 and an H200

  int channels, height, width;
  int channel_pairs;
  int strip, strips;  // columns of a strip; strips of a line
  int image_pairs;    // pairs of lines of an image, of which the last may be a single line
  int stage_pairs;    // of a stage
  int line_bytes;
  int stages, splits;
  int64_t lines, pairs;  // of all images

  explicit DepthwisePacked(const ConvolutionSizes& c)
      : channels(c.groups), height(c.y[0]), width(c.y[1]), channel_pairs(channels / 2) {
    const auto columns_of = [&](int length) { return divide_up(width, length) * length; };
    strip = columns_of(7) < columns_of(8) ? 7 : 8;
    strips = static_cast<int>(divide_up(width, strip));
    image_pairs = static_cast<int>(divide_up(height, 2));
    line_bytes = width * channels * 2;
    lines = c.batch * height;
    pairs = c.batch * image_pairs;
    splits = static_cast<int>(std::clamp<int64_t>(pairs, 1, processors));
    const int64_t by_threads = max_threads / (int64_t{channel_pairs} * strips), by_share = divide_up(pairs, splits);
    stage_pairs = static_cast<int>(std::max<int64_t>(std::min(by_threads, by_share), 0));
    while (stage_pairs > 1 && stages_that_fit() < 3) --stage_pairs;
    stages = static_cast<int>(std::clamp<int64_t>(stages_that_fit(), 0, max_stages));
  }

  constexpr int threads() const { return channel_pairs * strips * stage_pairs; }
  constexpr int64_t x_bytes() const { return int64_t{2 * stage_pairs + 2} * line_bytes; }
  constexpr int64_t stage_bytes() const { return x_bytes() + int64_t{2 * stage_pairs} * line_bytes; }
  int64_t blocks() const { return splits; }
  constexpr int64_t sums_bytes() const { return int64_t{threads() | 1} * 2 * taps * 4; }
  int64_t shared_bytes() const { return border_bytes + std::max<int64_t>(stages * (stage_bytes() + 16), sums_bytes()); }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }

 private:
  constexpr int64_t stages_that_fit() const { return (most_shared_bytes - border_bytes) / (stage_bytes() + 16); }
};

// 3 x 3 in a 16-bit float, without strides and dilations, images as large behind the convolution as before it, of even
// channels whose lines are whole vectors of 16 bytes.
inline bool fits_depthwise_packed(const ConvolutionSizes& c) {
  if (!fits_depthwise(c) || c.groups % 2 != 0) return false;
  for (int d = 0; d < 2; ++d)
    if (c.kernel[d] != 3 || c.stride[d] != 1 || c.dilation[d] != 1 || c.pad[d] != 1 || c.x[d] != c.y[d]) return false;
  if (int64_t{c.x[1]} * c.groups % 8 != 0 || int64_t{c.x[1]} * c.groups >= 1 << 16) return false;
  const DepthwisePacked p(c);
  return p.stage_pairs >= 1 && p.stages >= 2 && p.pairs < int64_t{1} << 30 && p.lines < int64_t{1} << 30;
}

}  // namespace plimsoll::cuda
