#pragma once

// How depthwise convolutions over volumes divide their work where the matrix units make them. No CUDA here: plans are
// made where there is none.

#include "kernels/cuda/conv/volume_columns.h"

#include <numeric>

namespace plimsoll::cuda {

// In shared memory a block has whole lines, of all channels, as they lie in memory.
struct VolumeLinePlan : VolumeColumnPlan {
  static constexpr int copied = 16, most_line_bytes = 16 << 10, border_bytes = 128;

  constexpr int pixel_bytes() const { return 2 * block_channels; }
  constexpr int block_pairs() const { return block_channels / 2; }
  // Of 32 neighbouring pixels so many words of the same pair lie at the same bank of shared memory.
  constexpr int bank_conflicts() const { return std::gcd(block_pairs(), 32); }

 protected:
  VolumeLinePlan(int channels, int pixels) : VolumeColumnPlan(channels, channels, pixels, pixels) {}
};

// conv and conv_dx. Columns of results are divided into strips of 4, which are the rows of products: 16 strips of one
// to 8 lines. With strides, which dx alone may have, a strip has two pixels of dy under it and one before them, and two
// lines of results have the same lines of dy.
struct VolumeBands : VolumeLinePlan {
  static constexpr int strip = 4, product_strips = 16, most_stages = 6, most_result_stages = 3;
  static constexpr int most_warps = 8, most_pairs = 7, computing_threads = most_warps * 32,
                       threads = computing_threads + 128, most_biases = most_warps * most_pairs * 2;

  int stride;                   // pixels of dx for one of dy
  int in[3], out[3], first[3];  // first: of the pixels under the first result
  int first_out[2];             // the first result of a plane, which may lie before it
  int strips, log_places;       // of a line; places for them in a product: 2 to that power
  int halves;                   // products that have the strips of a line
  int warps, warp_pairs;        // of channels
  int in_lines;                 // of a block
  int zero_bytes = 0;           // before a line
  int pitch, result_pitch;      // bytes from line to line in shared memory
  int stage_bytes, result_bytes, result_stages;

  constexpr int product_lines() const { return product_strips >> log_places; }
  // Products of a pair of channels that a warp makes of a plane at once.
  constexpr int products() const {
    if (stride > 1) return stride * halves;
    return product_lines() == 1 ? 4 : product_lines() == 8 ? 1 : 2;
  }

  VolumeBands(const DepthwiseVolumeSizes& c, bool gradient)
      : VolumeLinePlan(c.channels, gradient ? c.x[2] : c.y[2]), stride(c.stride[1]) {
    for (int d = 0; d < 3; ++d) {
      in[d] = gradient ? c.y[d] : c.x[d];
      out[d] = gradient ? c.x[d] : c.y[d];
      first[d] = gradient ? c.pad[d] - taps + 1 : -c.pad[d];
      if (d == 0) continue;
      first_out[d - 1] = stride == 1 ? 0 : -(c.pad[d] % stride);
      if (stride != 1) first[d] = c.pad[d] / stride - 1;
    }
    strips = static_cast<int>(divide_up(width - first_out[1], strip));
    halves = strips > product_strips ? 2 : 1;
    log_places = 1;
    while (1 << log_places < std::min(strips, product_strips)) ++log_places;
    lines = stride == 1 ? product_lines() * products() : product_lines() * stride;
    in_lines = lines / stride + (stride == 1 ? taps - 1 : 1);
    warp_pairs = static_cast<int>(divide_up(block_pairs(), most_warps));
    warp_pairs = warp_pairs <= 4 && products() > 1 ? 4 : warp_pairs <= 5 ? 5 : most_pairs;
    warps = static_cast<int>(divide_up(block_pairs(), warp_pairs));
    result_pitch = width * pixel_bytes();
    if (width > most_pixels(c) || warps > most_warps || (products() == 4 && warp_pairs > 4)) return;
    if (!places_lines((out[2] - 1 - first_out[1]) / stride + (stride == 1 ? taps : 2))) return;
    stage_bytes = rounded(int64_t{in_lines} * pitch, border_bytes);
    result_bytes = rounded(int64_t{lines} * result_pitch, border_bytes);
    const int64_t left = most_shared_bytes - other_bytes(), stage = stage_bytes + 16, result = result_bytes + 16;
    constexpr int few_stages = 3;
    result_stages = few_stages * stage + most_result_stages * result <= left ? most_result_stages : 2;
    stages = static_cast<int>(std::min<int64_t>(most_stages, (left - result_stages * result) / stage));
    share_columns(c.batch, out[1] - first_out[0], out[0]);
  }
  constexpr bool valid() const { return stages >= 2; }
  // Bytes before the first pixel that a line's first result reads.
  constexpr int skipped_bytes() const { return zero_bytes + first[2] * pixel_bytes(); }
  int64_t shared_bytes() const {
    return other_bytes() + int64_t{stages} * (stage_bytes + 16) + result_stages * (int64_t{result_bytes} + 16);
  }

 private:
  static constexpr int64_t other_bytes() { return border_bytes + 4 * most_biases; }
  static constexpr int most_pixels(const DepthwiseVolumeSizes& c) {
    return c.stride[1] == 1 ? product_strips * strip : 2 * product_strips * strip - strip;
  }
  // needed: pixels from the first one that results read to the last one.
  bool places_lines(int needed) {
    const int in_bytes = in[2] * pixel_bytes(), behind = std::max(first[2] + needed - in[2], 0);
    zero_bytes = rounded(-first[2] * pixel_bytes(), copied);
    pitch = zero_bytes + in_bytes + rounded(behind * pixel_bytes(), copied);
    return in_bytes % copied == 0 && result_pitch % copied == 0 && in_bytes <= most_line_bytes;
  }
};

// conv_dw. A block goes down planes of x and keeps the three planes of dy that each of them meets. The terms of a
// product are 8 pixels; its rows are pixels of dy in two lines and three planes, each once for either of two channels,
// and its columns those of x in two lines and at three distances.
struct VolumeBandWeights : VolumeLinePlan {
  static constexpr int product_pixels = 8, warp_pairs = 4, most_parts = 2, most_pixels = 64;
  static constexpr int most_warps = 14, copying_threads = 64, most_threads = most_warps * 32 + copying_threads;
  static constexpr int few_dy_stages = taps + 1, most_dy_stages = 6, most_x_stages = 4;

  int stride, pad[3], x[3], dy[3];
  int warps, line_pairs;         // of a warp
  int line_parts, column_parts;  // of a block's products, that warps of the same channels have
  int x_lines, column_products;  // products beside each other
  int zero_bytes;                // before a line of x
  int x_pitch, dy_pitch, x_stage_bytes, dy_stage_bytes, dy_stages = 0;

  constexpr int parts() const { return line_parts * column_parts; }
  constexpr int threads() const { return warps * 32 + copying_threads; }
  constexpr bool valid() const { return stages >= 2; }
  constexpr int64_t workspace_bytes(const DepthwiseVolumeSizes& c) const { return splits * c.weights() * 4; }

  explicit VolumeBandWeights(const DepthwiseVolumeSizes& c) : VolumeLinePlan(c.channels, c.y[2]), stride(c.stride[1]) {
    for (int d = 0; d < 3; ++d) pad[d] = c.pad[d], x[d] = c.x[d], dy[d] = c.y[d];
    const int groups = static_cast<int>(divide_up(block_pairs(), warp_pairs));
    column_products = static_cast<int>(divide_up(width, product_pixels));
    const int parts = groups * most_parts <= most_warps ? most_parts : 1;
    line_parts = column_products <= 2 ? parts : 1;
    column_parts = parts / line_parts;
    warps = groups * parts;
    if (warps > most_warps || width > most_pixels) return;
    for (line_pairs = 2; line_pairs > 0 && !valid(); --line_pairs) place_stages();
    ++line_pairs;
    if (valid()) share_columns(c.batch, dy[1], x[0]);
  }
  // Sums of each part and of either line of dy lie there in the end.
  int64_t shared_bytes() const {
    const int64_t sums = int64_t{parts()} * 2 * block_channels * taps * taps * taps * 4;
    const int64_t planes = int64_t{stages} * (x_stage_bytes + 16) + int64_t{dy_stages} * (dy_stage_bytes + 16);
    return border_bytes + std::max(planes, sums);
  }

 private:
  void place_stages() {
    constexpr int turn = 128, half_turn = 64;
    lines = 2 * line_pairs * line_parts;
    x_lines = stride * (lines - 1) + taps;
    // Neighbouring lines lie half a turn of banks apart, and neighbouring planes of dy a little.
    const auto half_turned = [](int bytes) { return rounded(bytes + half_turn, turn) - half_turn; };
    const int x_bytes = x[2] * pixel_bytes(), dy_bytes = dy[2] * pixel_bytes();
    if (x_bytes % copied != 0 || dy_bytes % copied != 0 || std::max(x_bytes, dy_bytes) > most_line_bytes) return;
    const int behind = std::max(stride * (width - 1) + taps - pad[2] - x[2], 0);
    zero_bytes = rounded(pad[2] * pixel_bytes(), copied);
    x_pitch = half_turned(zero_bytes + x_bytes + behind * pixel_bytes());
    dy_pitch = half_turned(column_products * product_pixels * pixel_bytes());
    x_stage_bytes = rounded(int64_t{x_lines} * x_pitch, turn);
    dy_stage_bytes = rounded(int64_t{lines} * dy_pitch, turn) + copied;
    const int64_t left = most_shared_bytes - border_bytes;
    const auto fits = [&](int of_x, int of_dy) {
      return of_x * (int64_t{x_stage_bytes} + 16) + of_dy * (int64_t{dy_stage_bytes} + 16) <= left;
    };
    if (!fits(2, few_dy_stages)) return;
    stages = 2, dy_stages = few_dy_stages;
    while (true) {
      if (dy_stages < most_dy_stages && dy_stages - taps < stages && fits(stages, dy_stages + 1))
        ++dy_stages;
      else if (stages < most_x_stages && fits(stages + 1, dy_stages))
        ++stages;
      else
        break;
    }
  }
};

// 3 x 3 x 3 taps of 16-bit floats and an even number of channels that are no whole units, padded by no more than two
// pixels, where lines are multiples of 16 bytes: gradients with strides in planes, too.
inline bool fits_volume_bands_taps(const DepthwiseVolumeSizes& c) {
  for (int d = 0; d < 3; ++d)
    if (c.kernel[d] != VolumeBands::taps || c.pad[d] < 0 || c.pad[d] >= VolumeBands::taps) return false;
  return c.channels % 2 == 0 && c.channels % VolumeColumnPlan::unit != 0 && c.stride[0] == 1 &&
         c.stride[1] == c.stride[2];
}
inline bool fits_volume_bands(const DepthwiseVolumeSizes& c, bool gradient) {
  if (!fits_volume_bands_taps(c) || c.stride[1] > (gradient ? 2 : 1)) return false;
  const VolumeBands p(c, gradient);
  return p.valid() && p.columns() * p.out[0] < VolumeColumnPlan::most_planes;
}
inline bool fits_volume_band_weights(const DepthwiseVolumeSizes& c) {
  if (!fits_volume_bands_taps(c) || c.stride[1] > 2) return false;
  const VolumeBandWeights p(c);
  return p.valid() && p.columns() * p.x[0] < VolumeColumnPlan::most_planes;
}

}  // namespace plimsoll::cuda
