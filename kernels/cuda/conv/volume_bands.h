#pragma once

// How depthwise convolutions over volumes divide their work where the matrix units make them. No CUDA here: plans are
// made where there is none.

#include "kernels/cuda/conv/depthwise_volumes.h"

#include <numeric>

namespace plimsoll::cuda {

// A block has some channels and goes down the planes of columns: some lines of an image. In shared memory it has whole
// lines, of all channels, where the pixels of these are no multiples of 16 bytes, and boxes where they are.
struct VolumeColumnPlan {
  static constexpr int taps = 3, unit = 8, copied = 16, most_line_bytes = 16 << 10, border_bytes = 128;
  static constexpr int64_t processors = 132, most_shared_bytes = 227 << 10;

  int channels, block_channels, channel_blocks;
  bool whole_lines;
  int width, across;      // pixels of a column; columns beside each other
  int lines, row_blocks;  // of a column; columns below each other
  int stages = 0;
  // Blocks of the same channels: they have whole columns, and share the planes of the others.
  int64_t whole_columns = 0, divided_columns = 0, splits = 0;

  constexpr int pixel_bytes() const { return 2 * block_channels; }
  constexpr int block_pairs() const { return block_channels / 2; }
  // Of 32 neighbouring pixels so many words of the same pair lie at the same bank of shared memory.
  constexpr int bank_conflicts() const { return std::gcd(block_pairs(), 32); }
  constexpr int64_t blocks() const { return splits * channel_blocks; }
  constexpr int64_t columns() const { return whole_columns + divided_columns; }

 protected:
  // Of `pixels` a line. Columns begin at multiples of `step`.
  VolumeColumnPlan(int channels, int pixels, int step, int most_across, int most_channels) : channels(channels) {
    whole_lines = channels % unit != 0;
    across = static_cast<int>(divide_up(pixels, most_across));
    width = across == 1 ? pixels : static_cast<int>(divide_up(divide_up(pixels, across), step)) * step;
    across = static_cast<int>(divide_up(pixels, width));
    block_channels = channels, channel_blocks = 1;
    if (whole_lines) return;
    // Of 32 neighbouring pixels four lie at a bank where they are an odd number of units, and more where an even one.
    int64_t least = INT64_MAX;
    for (int units = 1; units <= most_channels / unit; units += 2) {
      const int64_t count = divide_up(channels, units * unit), cost = count * (units + 1);
      if (cost > least) continue;
      least = cost;
      block_channels = units * unit, channel_blocks = static_cast<int>(count);
    }
  }
  // Columns that do not go round are divided, unless the planes that two blocks read cost more than that saves.
  void share_columns(int64_t images, int down, int64_t planes) {
    constexpr int read_twice = taps - 1;
    row_blocks = static_cast<int>(divide_up(down, lines));
    const int64_t all = images * row_blocks * across, most = std::max<int64_t>(processors / channel_blocks, 1);
    const int64_t rest = all % most;
    const bool divides = divide_up(rest * planes, most) + read_twice < planes;
    divided_columns = divides ? rest : 0;
    whole_columns = all - divided_columns;
    splits = std::min(most, whole_columns + divided_columns * planes);
  }
  static constexpr int rounded(int64_t bytes, int to) { return static_cast<int>(divide_up(bytes, to)) * to; }
};

// conv and conv_dx. Columns of results are divided into strips of 4, which are the rows of products: 16 strips of one
// to 8 lines. With strides, which dx alone may have, a strip has two pixels of dy under it and one before them, and two
// lines of results have the same lines of dy.
struct VolumeBands : VolumeColumnPlan {
  static constexpr int strip = 4, product_strips = 16, most_stages = 6, most_result_stages = 3;
  static constexpr int most_warps = 8, most_pairs = 7, computing_threads = most_warps * 32,
                       threads = computing_threads + 128, most_biases = most_warps * most_pairs * 2;

  int stride;                   // pixels of dx for one of dy
  int in[3], out[3], first[3];  // first: of the pixels under the first result
  int first_out[2];             // the first result of a plane, which may lie before it
  int strips, log_places;       // of a line; places for them in a product: 2 to that power
  int halves;                   // products that have the strips of a line
  int warps, warp_pairs;        // of channels
  int in_lines, in_columns;     // of a block
  int zero_bytes = 0;           // before a whole line
  int pitch, result_pitch;      // bytes from line to line in shared memory
  int stage_bytes, result_bytes, result_stages;

  constexpr int product_lines() const { return product_strips >> log_places; }
  // Products of a pair of channels that a warp makes of a plane at once.
  constexpr int products() const {
    if (stride > 1) return stride * halves;
    return product_lines() == 1 ? 4 : product_lines() == 8 ? 1 : 2;
  }

  VolumeBands(const DepthwiseVolumeSizes& c, bool gradient)
      : VolumeColumnPlan(c.channels, gradient ? c.x[2] : c.y[2], strip, most_across(c),
                         most_channels(gradient ? c.x[2] : c.y[2], c.stride[1])),
        stride(c.stride[1]) {
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
    in_columns = stride == 1 ? width + taps - 1 : (strips + 1) * strip / stride;
    warp_pairs = static_cast<int>(divide_up(block_pairs(), most_warps));
    warp_pairs = warp_pairs <= 4 && products() > 1 ? 4 : warp_pairs <= 5 ? 5 : most_pairs;
    warps = static_cast<int>(divide_up(block_pairs(), warp_pairs));
    pitch = in_columns * pixel_bytes(), result_pitch = width * pixel_bytes();
    if (warps > most_warps || (products() == 4 && warp_pairs > 4) || (stride > 1 && !whole_lines)) return;
    if (whole_lines && !places_whole_lines((out[2] - 1 - first_out[1]) / stride + (stride == 1 ? taps : 2))) return;
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
  constexpr int skipped_bytes() const { return whole_lines ? zero_bytes + first[2] * pixel_bytes() : 0; }
  int64_t shared_bytes() const {
    return other_bytes() + int64_t{stages} * (stage_bytes + 16) + result_stages * (int64_t{result_bytes} + 16);
  }

 private:
  static constexpr int64_t other_bytes() { return border_bytes + 4 * most_biases; }
  static constexpr int most_across(const DepthwiseVolumeSizes& c) {
    return c.stride[1] == 1 ? product_strips * strip : 2 * product_strips * strip - strip;
  }
  // A warp has fewer pairs of channels where each has four products.
  static constexpr int most_channels(int pixels, int stride) {
    return pixels > stride * product_strips * strip / 2 ? 56 : 72;
  }
  // needed: pixels from the first one that results read to the last one.
  bool places_whole_lines(int needed) {
    const int in_bytes = in[2] * pixel_bytes(), behind = std::max(first[2] + needed - in[2], 0);
    zero_bytes = rounded(-first[2] * pixel_bytes(), copied);
    pitch = zero_bytes + in_bytes + rounded(behind * pixel_bytes(), copied);
    return across == 1 && in_bytes % copied == 0 && result_pitch % copied == 0 && in_bytes <= most_line_bytes;
  }
};

// conv_dw. A block goes down planes of x and keeps the three planes of dy that each of them meets. The terms of a
// product are 8 pixels; its rows are pixels of dy in two lines and three planes, each once for either of two channels,
// and its columns those of x in two lines and at three distances.
struct VolumeBandWeights : VolumeColumnPlan {
  static constexpr int product_pixels = 8, warp_pairs = 4, most_parts = 2, most_across = 64, most_channels = 56;
  static constexpr int most_warps = 14, copying_threads = 64, most_threads = most_warps * 32 + copying_threads;
  static constexpr int few_dy_stages = taps + 1, most_dy_stages = 6, most_x_stages = 4;

  int stride, pad[3], x[3], dy[3];
  int warps, line_pairs;         // of a warp
  int line_parts, column_parts;  // of a block's products, that warps of the same channels have
  int x_lines, column_products;  // products beside each other
  int zero_bytes;                // before a whole line of x
  int x_pitch, dy_pitch, x_stage_bytes, dy_stage_bytes, dy_stages = 0;

  constexpr int parts() const { return line_parts * column_parts; }
  constexpr int threads() const { return warps * 32 + copying_threads; }
  constexpr bool valid() const { return stages >= 2; }
  constexpr int64_t workspace_bytes(const DepthwiseVolumeSizes& c) const { return splits * c.weights() * 4; }

  explicit VolumeBandWeights(const DepthwiseVolumeSizes& c)
      : VolumeColumnPlan(c.channels, c.y[2], product_pixels, most_across, most_channels), stride(c.stride[1]) {
    for (int d = 0; d < 3; ++d) pad[d] = c.pad[d], x[d] = c.x[d], dy[d] = c.y[d];
    const int groups = static_cast<int>(divide_up(block_pairs(), warp_pairs));
    column_products = static_cast<int>(divide_up(width, product_pixels));
    const int parts = groups * most_parts <= most_warps ? most_parts : 1;
    line_parts = column_products <= 2 ? parts : 1;
    column_parts = parts / line_parts;
    warps = groups * parts;
    if (warps > most_warps || (whole_lines && across > 1) || (stride > 1 && !whole_lines)) return;
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
    x_pitch = (stride * (width - 1) + taps) * pixel_bytes();
    dy_pitch = column_products * product_pixels * pixel_bytes();
    zero_bytes = 0;
    int apart = 0;
    if (whole_lines) {
      // Neighbouring lines lie half a turn of banks apart, and neighbouring planes of dy a little.
      const auto half_turned = [](int bytes) { return rounded(bytes + half_turn, turn) - half_turn; };
      const int x_bytes = x[2] * pixel_bytes(), dy_bytes = dy[2] * pixel_bytes();
      if (x_bytes % copied != 0 || dy_bytes % copied != 0 || std::max(x_bytes, dy_bytes) > most_line_bytes) return;
      const int behind = std::max(stride * (width - 1) + taps - pad[2] - x[2], 0);
      zero_bytes = rounded(pad[2] * pixel_bytes(), copied);
      x_pitch = half_turned(zero_bytes + x_bytes + behind * pixel_bytes());
      dy_pitch = half_turned(dy_pitch);
      apart = copied;
    }
    x_stage_bytes = rounded(int64_t{x_lines} * x_pitch, turn);
    dy_stage_bytes = rounded(int64_t{lines} * dy_pitch, turn) + apart;
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

// 3 x 3 x 3 taps of 16-bit floats and an even number of channels, padded by no more than two pixels: gradients of
// whole lines with strides in planes, too.
inline bool fits_volume_bands_taps(const DepthwiseVolumeSizes& c) {
  for (int d = 0; d < 3; ++d)
    if (c.kernel[d] != VolumeBands::taps || c.pad[d] < 0 || c.pad[d] >= VolumeBands::taps) return false;
  return c.channels % 2 == 0 && c.stride[0] == 1 && c.stride[1] == c.stride[2];
}
inline bool fits_volume_bands(const DepthwiseVolumeSizes& c, bool gradient) {
  constexpr int64_t most = int64_t{1} << 30;
  if (!fits_volume_bands_taps(c) || c.stride[1] > (gradient ? 2 : 1)) return false;
  const VolumeBands p(c, gradient);
  return p.valid() && p.columns() * p.out[0] < most;
}
inline bool fits_volume_band_weights(const DepthwiseVolumeSizes& c) {
  constexpr int64_t most = int64_t{1} << 30;
  if (!fits_volume_bands_taps(c) || c.stride[1] > 2) return false;
  const VolumeBandWeights p(c);
  return p.valid() && p.columns() * p.x[0] < most;
}

}  // namespace plimsoll::cuda
