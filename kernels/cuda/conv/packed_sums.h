#pragma once

// How weight gradients of 3 x 3 convolutions whose pixels are no whole units of 8 channels divide their work on Hopper.
// No CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/packed_lines.h"

namespace plimsoll::cuda {

// Numbers under a line of taps by channels of dy, summed over 16 pixels of a line at a time. A line of x meets the
// lines of dy above, beside and below it, and the sums for all three stay in the registers of a warp, which has a part
// of the numbers and of the channels. Both come in words of two. Teams of warps have different pixels.
struct PackedSums : PackedRing {
  static constexpr int warps = 8, computing_threads = 32 * warps, threads = computing_threads + 128;
  static constexpr int computing_registers = 240, copying_registers = 24;  // three threads may have 504 together
  static constexpr int line_words = 16;  // of 16 numbers of x: of the left operands of two products

  int batch, height, width, x_channels, y_channels;
  bool has_few;                        // channels, so that a warp has all sums of some pixels
  int x_parts, y_parts, teams, kinds;  // kinds: blocks that have the same lines
  int spread, steps;                   // pixels between those of threads side by side; products of 16 pixels of a unit
  int line_units;                      // of pixels, of a line
  int x_line_bytes, dy_line_bytes, x_front_bytes, x_slot_bytes, dy_slot_bytes;
  int block_lines = 0, splits = 0;
  QuickDivisor of_height, of_line;

  explicit PackedSums(const ConvolutionSizes& c)
      : batch(static_cast<int>(c.batch)),
        height(c.x[0]),
        width(c.x[1]),
        x_channels(c.x_channels),
        y_channels(c.y_channels),
        has_few(kernel * c.x_channels <= 4 * line_words && c.y_channels <= 24) {
    x_parts = static_cast<int>(divide_up(kernel * x_channels / 2, x_words()));
    y_parts = static_cast<int>(divide_up(y_channels / 2, y_words()));
    const int parts = x_parts * y_parts;
    teams = parts == 1 ? 8 : parts == 2 ? 4 : parts <= 4 ? 2 : 1;
    kinds = static_cast<int>(divide_up(parts, warps));
    const int words = x_channels / 2;
    spread = words % 2 != 0 ? 8 : words % 4 != 0 ? 4 : 2;
    steps = spread == 8 ? 2 : 1;
    line_units = static_cast<int>(divide_up(width, unit_pixels()));
    x_line_bytes = width * x_channels * 2, dy_line_bytes = width * y_channels * 2;
    const int behind = line_units * unit_pixels() - width;
    x_front_bytes = static_cast<int>(round_up(x_channels * 2, border));
    x_slot_bytes = x_front_bytes + x_line_bytes + static_cast<int>(round_up((behind + 1) * x_channels * 2, border));
    dy_slot_bytes = dy_line_bytes + static_cast<int>(round_up(behind * y_channels * 2, border));
    const int64_t all = int64_t{batch} * height;
    block_lines = static_cast<int>(divide_up(all, wanted_blocks / kinds));
    splits = static_cast<int>(divide_up(all, block_lines));
    set_stages(block_lines + 2, slot_bytes(), max_shared_bytes - zero_bytes());
    of_height = QuickDivisor(height), of_line = QuickDivisor(line_units);
  }

  // Words of a pixel that a warp has.
  constexpr int x_words() const { return (has_few ? 2 : 1) * line_words; }
  constexpr int y_words() const { return has_few ? 12 : 20; }
  constexpr int unit_pixels() const { return 16 * steps; }
  constexpr int slot_bytes() const { return x_slot_bytes + dy_slot_bytes; }
  // Behind the lines: zeros that stand for pixels of lines outside the image, whose last ones words beyond the last
  // channels are read from.
  constexpr int zero_bytes() const { return static_cast<int>(round_up(10 * y_channels * 2 + 256, border)); }
  // Either a block's lines are all in the ring, or a team waits for those of its next unit while it has those of one,
  // beside stages that are filled.
  constexpr bool has_lines() const {
    const int of_team = static_cast<int>(divide_up(teams, line_units)) + kernel;
    return lines >= std::min(block_lines + 2, of_team + 2 * stage_lines);
  }
  // Pairs of sums of a thread.
  constexpr int pairs() const { return kernel * 4 * (has_few ? 2 * 3 : 5); }
  constexpr double steps_of_warp() const {
    return static_cast<double>(divide_up(int64_t{block_lines} * line_units, teams) * steps);
  }
  constexpr int64_t shared_bytes() const {
    const int64_t joined = int64_t{warps} * pairs() * 32 * 8;
    return std::max(int64_t{lines} * slot_bytes() + zero_bytes(), joined);
  }
  int64_t blocks() const { return int64_t{splits} * kinds; }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
};

inline bool fits_packed_sums(const ConvolutionSizes& c) {
  if (!fits_packed_images(c, 1)) return false;
  const PackedSums p(c);
  return p.shared_bytes() <= PackedRing::max_shared_bytes && p.has_lines();
}

}  // namespace plimsoll::cuda
