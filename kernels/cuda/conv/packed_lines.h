#pragma once

// How 3 x 3 convolutions whose pixels are no whole units of 8 channels, and their gradients, divide their work on
// Hopper. No CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/grouped_lines.h"

namespace plimsoll::cuda {

// Pixels of 36 bytes begin at no borders that the copy engine could copy boxes to, but whole lines do. A block has some
// results, one behind the other, and a ring of the lines that they read, as they lie in memory, between zeros.
struct PackedRing {
  static constexpr int kernel = 3, min_channels = 8, max_channels = 80, max_stages = 32, border = 16;
  static constexpr int64_t max_shared_bytes = 230'000,
                           wanted_blocks = 132;  // multiprocessors of an H200

  int stage_lines = 1, stages = 0, lines = 0;  // lines: of the ring
  QuickDivisor of_ring;

  constexpr int place_in_ring(int line) const { return line - of_ring.quotient(line) * lines; }

 protected:
  // As many stages as a block has lines for, or as there is room for.
  void set_stages(int64_t block_lines, int64_t slot_bytes, int64_t room) {
    constexpr int wanted_stages = 16;
    const int64_t most = std::min(block_lines, room / slot_bytes);
    stage_lines = static_cast<int>(std::max<int64_t>(1, divide_up(most, wanted_stages)));
    stages = static_cast<int>(std::min(divide_up(block_lines, stage_lines), room / (slot_bytes * stage_lines)));
    lines = stages * stage_lines;
    of_ring = QuickDivisor(std::max(lines, 1));
  }
};

// y of x, or dx of dy: products of 16 pixels by 8 results by 16 of the numbers under a line of taps, which lie one
// behind the other in memory. Warps of a team have the same pixels: each has some of the results, and where these are
// many, one line of the taps.
struct PackedLines : PackedRing {
  static constexpr int computing_warps = 12, computing_threads = 32 * computing_warps,
                       threads = computing_threads + 128;
  static constexpr int computing_registers = 160, copying_registers = 32;  // four threads may have 512 together
  static constexpr int most_together = 5;                                  // units of results of a warp
  // So many groups of pixels of a block are few: warps of a team divide the taps, too.
  static constexpr int few_groups = 2;

  int batch, in[2], out[2], stride, in_channels, out_channels;
  bool gradient;
  int units, parts;  // of 8 results; parts: warps that share the results of a pixel
  int rows_of_warp;  // lines of taps of a warp: 3, or 1 of a team of 3
  int tiles;         // of 16 pixels, of a team at once
  int teams, team_warps;
  int steps;       // products of 16 numbers under a line of taps
  bool ends_half;  // of the last of which 8 are zeros
  int spread;      // log2 of the distance of pixels in neighbouring rows, with which no banks conflict
  int line_bytes, gap_bytes;
  int weight_pitch;  // units of 16 bytes
  int known = 0;     // channels of both images, where there is a kernel for no others
  int block_pixels = 0, blocks = 0;
  QuickDivisor of_width, of_height;

  // Of pixels that are so many words of two numbers apart.
  static constexpr int spread_of(int words) { return words % 2 != 0 ? 2 : words % 4 != 0 ? 1 : 0; }

  PackedLines(const ConvolutionSizes& c, bool of_gradient)
      : batch(static_cast<int>(c.batch)),
        stride(c.stride[0]),
        in_channels(of_gradient ? c.y_channels : c.x_channels),
        out_channels(of_gradient ? c.x_channels : c.y_channels),
        gradient(of_gradient) {
    for (int d = 0; d < 2; ++d) in[d] = gradient ? c.y[d] : c.x[d], out[d] = gradient ? c.x[d] : c.y[d];
    const auto all_units = static_cast<int>(divide_up(out_channels, unit_channels));
    parts = static_cast<int>(divide_up(all_units, most_together));
    units = static_cast<int>(divide_up(all_units, parts));
    if (stride == 1 && in_channels == out_channels && (in_channels == 18 || in_channels == 36 || in_channels == 72))
      known = in_channels;
    tiles = parts > 1 || known == 36 ? 3 : 2;
    const int64_t pixels = int64_t{batch} * out[0] * out[1],
                  block_groups = divide_up(divide_up(pixels, team_pixels()), wanted_blocks);
    rows_of_warp = parts > 1 && block_groups <= few_groups ? 1 : kernel;
    team_warps = parts * (kernel / rows_of_warp), teams = computing_warps / team_warps;
    const auto row_units = static_cast<int>(divide_up(kernel * in_channels, unit_channels));
    steps = static_cast<int>(divide_up(row_units, 2)), ends_half = row_units % 2 != 0;
    spread = std::min(spread_of(stride * in_channels / 2), tiles % 2 == 0 ? 2 : 1);
    line_bytes = in[1] * in_channels * 2;
    gap_bytes = static_cast<int>(round_up(2 * in_channels + 2 * (steps * 16 - kernel * in_channels), border));
    weight_pitch = odd_units(gradient ? parts * units : kernel * 2 * steps);
    of_width = QuickDivisor(out[1]), of_height = QuickDivisor(out[0]);
    block_pixels = static_cast<int>(block_groups) * team_pixels();
    blocks = static_cast<int>(divide_up(pixels, block_pixels));
    set_stages(block_lines(), slot_bytes(), max_shared_bytes - fixed_bytes());
  }

  constexpr int team_pixels() const { return 16 * tiles; }
  constexpr int slot_bytes() const { return gap_bytes + line_bytes; }
  constexpr int weight_rows() const { return gradient ? kernel * steps * 16 : parts * units * unit_channels; }
  constexpr int weight_bytes() const { return weight_rows() * weight_pitch * 16; }
  // Zeros that pixels outside the image are read from.
  constexpr int zero_bytes() const {
    return static_cast<int>(round_up(steps * 32 + ((1 << spread) - 1) * stride * in_channels * 2, border));
  }
  // Behind the last line.
  constexpr int ring_bytes() const { return lines * slot_bytes() + gap_bytes; }
  constexpr int staged_bytes() const { return team_pixels() * out_channels * 2; }
  // Of sums that warps of a team exchange.
  constexpr int exchanged_bytes() const {
    return rows_of_warp == kernel ? 0 : parts * kernel * (kernel - 1) * units * 4 * 32 * 4;
  }
  constexpr int team_bytes() const { return staged_bytes() + exchanged_bytes(); }
  constexpr int64_t fixed_bytes() const {
    return int64_t{weight_bytes()} + zero_bytes() + gap_bytes + int64_t{teams} * team_bytes();
  }
  constexpr int64_t shared_bytes() const { return fixed_bytes() + int64_t{lines} * slot_bytes(); }
  // Lines, at most, that so many pixels read.
  constexpr int lines_of(int pixels) const { return static_cast<int>(divide_up(pixels - 1, out[1])) * stride + kernel; }
  constexpr int block_lines() const { return lines_of(block_pixels); }
  // Either a block's lines are all in the ring, or a team waits for its own beside stages that are filled.
  constexpr bool has_lines() const {
    return lines >= std::min(block_lines(), lines_of(team_pixels()) + 2 * stage_lines);
  }
  constexpr int block_groups() const { return block_pixels / team_pixels(); }
  // Words of 32 threads that a block's products read from shared memory. 18 known channels have their weights in
  // registers.
  double words_read() const {
    const int conflicts = spread_of(stride * in_channels / 2) > spread ? 2 : 1;
    const int weights = known == 18 ? 0 : 2 * units;
    return double{kernel} * (steps - (ends_half ? 0.5 : 0)) * (4 * tiles * conflicts + weights) * parts *
           block_groups();
  }
  // Words of 32 threads that warps of a team exchange, or leave in shared memory, for each other.
  double words_exchanged() const { return rows_of_warp == kernel ? 0 : 16.0 * parts * units * block_groups(); }
  double tiles_of_block() const { return double{1} * tiles * parts * block_groups(); }
};

inline bool fits_packed_images(const ConvolutionSizes& c, int max_stride) {
  constexpr int64_t most = int64_t{1} << 30;
  if (c.groups != 1 || c.x_channels % 2 != 0 || c.y_channels % 2 != 0) return false;
  // Banks of shared memory conflict where pixels that are read one after the other are multiples of two units apart.
  for (int channels : {c.x_channels * c.stride[1], c.y_channels})
    if (channels % (2 * unit_channels) == 0) return false;
  if (std::min(c.x_channels, c.y_channels) < PackedRing::min_channels ||
      std::max(c.x_channels, c.y_channels) > PackedRing::max_channels)
    return false;
  for (int d = 0; d < 2; ++d) {
    if (c.kernel[d] != PackedRing::kernel || c.dilation[d] != 1 || c.pad[d] != 1) return false;
    if (c.stride[d] != c.stride[0] || c.stride[d] > max_stride) return false;
    // No window reaches further than one pixel behind the image.
    if (c.y[d] < 1 || c.x[d] < 1 || (c.y[d] - 1) * c.stride[d] + 1 > c.x[d]) return false;
    if (c.stride[d] == 1 && c.y[d] != c.x[d]) return false;
  }
  if (int64_t{c.x[1]} * c.x_channels * 2 % PackedRing::border != 0) return false;
  if (int64_t{c.y[1]} * c.y_channels * 2 % PackedRing::border != 0) return false;
  return c.batch * c.x[0] * c.x[1] < most / PackedRing::max_channels * 2;
}

inline bool fits_packed_lines(const ConvolutionSizes& c, bool gradient) {
  if (!fits_packed_images(c, gradient ? 1 : 2)) return false;
  const PackedLines p(c, gradient);
  return p.shared_bytes() <= PackedRing::max_shared_bytes && p.has_lines();
}

}  // namespace plimsoll::cuda
