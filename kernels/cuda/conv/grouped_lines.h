#pragma once

// How 3 x 3 convolutions of groups of a few channels, and their gradients, divide their work among warps on Hopper. No
// CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/image_runs.h"
#include "kernels/cuda/conv/joined_groups.h"

namespace plimsoll::cuda {

// Quotients of numbers of 31 bits, each a product and a shift.
struct QuickDivisor {
  unsigned by = 1, magic = 0, shift = 0;

  QuickDivisor() = default;
  explicit QuickDivisor(int divisor) : by(static_cast<unsigned>(divisor)) {
    if (by == 1) return;
    unsigned bits = 1;
    while ((int64_t{1} << bits) < by) ++bits;
    magic = static_cast<unsigned>(divide_up(int64_t{1} << (31 + bits), by));
    shift = bits - 1;
  }
  constexpr int quotient(int n) const {
    const auto of = static_cast<unsigned>(n);
    return static_cast<int>(by == 1 ? of : static_cast<unsigned>(uint64_t{of} * magic >> 32) >> shift);
  }
};

enum class LinesPass { Output, InputGradient, WeightGradient };

// What warps of a block share. Those of a group, or of a few, take turns of its out pixels, 16 in a tile, with the
// weights in registers; of a weight gradient they share the taps.
struct LineWarps {
  int block_groups, warp_groups, pixel_warps, tiles, tap_warps;

  constexpr int warps() const { return block_groups / warp_groups * pixel_warps * tap_warps; }
  constexpr int threads() const { return 32 * (warps() + 1); }
  constexpr int step_pixels() const { return 16 * tiles * pixel_warps; }  // of all warps of a group
};

// By units of 8 channels of a group. As many threads as have registers for the weights or for the sums; blocks take 64
// or 72 channels, so that the copy engine moves long rows.
constexpr LineWarps output_warps(int units) {
  switch (units) {
    case 1: return {8, 4, 7, 2, 1};
    case 2: return {4, 2, 5, 2, 1};
    default: return {3, 1, 5, 1, 1};
  }
}
constexpr LineWarps weight_gradient_warps(int units) {
  switch (units) {
    case 1: return {8, 1, 1, 4, 1};
    case 2: return {4, 1, 2, 2, 1};
    case 3: return {3, 1, 2, 4, 2};
    default: return {2, 1, 2, 2, 3};
  }
}

// Lines of an image in a ring in shared memory, several lines a stage, which the copy engine brings with zeros for
// pads. Lines of all images follow each other; zeros above an image are also those below the one before. A pixel is an
// odd number of units, so that eight neighbours are read without conflicts: of an even number, one more is copied.
struct LineRing {
  static constexpr int kernel = 3, max_output_units = 3, max_stages = 32, max_box = 256;
  static constexpr int64_t max_shared_bytes = 230'000,
                           wanted_blocks = 132;  // multiprocessors of an H200

  int in[2], pad[2];
  int image_lines, line_pixels, pixel_bytes, line_bytes, stage_lines, stages = 0, lines = 0;
  QuickDivisor of_ring;

  constexpr int64_t ring_bytes() const { return int64_t{lines} * line_bytes; }
  constexpr int place_in_ring(int line) const { return line - of_ring.quotient(line) * lines; }

 protected:
  // For results that reach so far across and down.
  void set_lines(int window_lines, int window_pixels, int units_of_pixel) {
    constexpr int wanted_pixels = 64;  // of a stage
    image_lines = std::max(window_lines - pad[0], std::min(pad[0] + in[0], window_lines));
    line_pixels = window_pixels;
    pixel_bytes = units_of_pixel * 16;
    line_bytes = static_cast<int>(round_up(int64_t{line_pixels} * pixel_bytes, 128));
    stage_lines = std::max(1, wanted_pixels / line_pixels);
  }
  void set_stages(int64_t room) {
    stages = static_cast<int>(std::clamp<int64_t>(room / (int64_t{stage_lines} * line_bytes), 0, max_stages));
    lines = stages * stage_lines;
    of_ring = QuickDivisor(std::max(lines, 1));
  }
};

// A block has some out pixels of all images, one after the other, of some groups, and a ring of the lines of the other
// image that they read.
struct GroupedLines : LineRing {
  static constexpr int max_units = 4, dy_stage_bytes = 40'000;

  LineWarps warps;
  int units, groups, joined;  // units of 8 channels of a group
  int out[2], stride;
  int dy_stages = 0, dy_bytes = 0;  // of a weight gradient: out pixels of a step
  int channel_blocks, splits;
  int pixels, block_pixels;
  QuickDivisor of_image, of_row;

  GroupedLines(const ConvolutionSizes& c, LinesPass pass) : GroupedLines(JoinedGroups(c), pass) {}
  GroupedLines(const JoinedGroups& of, LinesPass pass)
      : units(of.sizes.x_channels / unit_channels),
        groups(of.sizes.groups),
        joined(of.count),
        stride(of.sizes.stride[0]) {
    const ConvolutionSizes& c = of.sizes;
    const bool gradient = pass == LinesPass::InputGradient;
    warps = pass == LinesPass::WeightGradient ? weight_gradient_warps(units) : output_warps(units);
    for (int d = 0; d < 2; ++d) {
      in[d] = gradient ? c.y[d] : c.x[d];
      out[d] = gradient ? c.x[d] : c.y[d];
      pad[d] = gradient ? kernel - 1 - c.pad[d] : c.pad[d];
    }
    set_lines((out[0] - 1) * stride + kernel, (out[1] - 1) * stride + kernel, pixel_units());
    if (pass == LinesPass::WeightGradient) {
      dy_bytes = static_cast<int>(round_up(int64_t{warps.step_pixels()} * pixel_bytes, 128));
      dy_stages = std::clamp(dy_stage_bytes / dy_bytes, 3, 8);
    }
    // Results need the first-level cache, which has what shared memory leaves of it.
    const int64_t wanted =
        pass == LinesPass::WeightGradient ? max_shared_bytes : std::max<int64_t>(100 << 10, 12 * int64_t{line_bytes});
    set_stages(std::min(wanted, max_shared_bytes - dy_stages * dy_bytes - staged_bytes(pass) - weight_bytes(pass)));
    of_image = QuickDivisor(out[0] * out[1]);
    of_row = QuickDivisor(out[1]);
    pixels = static_cast<int>(c.batch * out[0] * out[1]);
    channel_blocks = static_cast<int>(divide_up(groups, warps.block_groups));
    const int64_t parts = std::max<int64_t>(1, wanted_blocks / channel_blocks);
    block_pixels = static_cast<int>(
        round_up(divide_up(pixels, parts), pass == LinesPass::WeightGradient ? warps.step_pixels() : 16 * warps.tiles));
    splits = static_cast<int>(divide_up(pixels, block_pixels));
  }

  // Of units under all taps, of as many as a group has.
  static constexpr int pairs(int units_of_group) { return (kernel * kernel * units_of_group + 1) / 2; }
  constexpr int block_channels() const { return warps.block_groups * units * unit_channels; }
  constexpr int pixel_units() const { return odd_units(warps.block_groups * units); }
  constexpr int reach() const { return kernel - 1; }  // lines beyond the first that a pixel reads
  int64_t blocks() const { return int64_t{splits} * channel_blocks; }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
  // Results of warps on their way to memory.
  constexpr int64_t staged_bytes(LinesPass pass) const {
    if (pass == LinesPass::WeightGradient) return 0;
    return int64_t{warps.warps()} * 16 * warps.tiles * odd_units(warps.warp_groups * units) * 16;
  }
  // The weights of a block on their way to registers.
  constexpr int weight_row_bytes() const { return kernel * kernel * units * unit_channels / joined * 2; }
  constexpr int64_t weight_bytes(LinesPass pass) const {
    return pass == LinesPass::WeightGradient ? 0 : int64_t{block_channels()} * weight_row_bytes();
  }
  // A block's rows of results go out as a whole where they have no unit more in shared memory.
  static constexpr bool stores_boxes(int units_of_block) { return units_of_block % 2 != 0; }
  // The sums of a block's warps go through shared memory at last.
  int64_t shared_bytes(LinesPass pass) const {
    const int64_t sums =
        int64_t{warps.warps() / warps.pixel_warps} * 32 * 4 * 4 * units * divide_up(pairs(units), warps.tap_warps);
    return std::max(ring_bytes() + dy_stages * dy_bytes + staged_bytes(pass) + weight_bytes(pass),
                    pass == LinesPass::WeightGradient ? sums : 0);
  }
  // Lines from the first to the last one that so many out pixels read, whole stages of them.
  int64_t lines_of(int count) const {
    const int64_t rows = (count - 2) / out[1] + 1, images = (count - 2) / (int64_t{out[0]} * out[1]) + 1;
    return rows * stride + images * std::max(0, image_lines - out[0] * stride) + reach() + 1 + 2 * (stage_lines - 1);
  }
};

// The first line that an out pixel reads, counted from a block's first one, that line's place in the ring, and the
// first pixel there.
struct LinePlace {
  int line, in_ring, pixel;

  constexpr LinePlace(const GroupedLines& p, int out_pixel, int first_line) {
    const int image = p.of_image.quotient(out_pixel), in_image = out_pixel - image * p.out[0] * p.out[1],
              row = p.of_row.quotient(in_image);
    line = image * p.image_lines + row * p.stride - first_line;
    in_ring = p.place_in_ring(line);
    pixel = (in_image - row * p.out[1]) * p.stride;
  }
  // Where the pixel lies in the line that is `down` further; pixel_bytes are those of p.
  constexpr int at(const GroupedLines& p, int down, int pixel_bytes) const {
    const int place = in_ring + down, wrapped = place < p.lines ? place : place - p.lines;
    return wrapped * p.line_bytes + pixel * pixel_bytes;
  }
};

// What a block has to do; lines are counted from its first one.
struct LineBlock {
  int first_group, channel, split, first_pixel, end_pixel, first_line, last_line;

  constexpr LineBlock(const GroupedLines& p, int block) {
    const int of_channels = block % p.channel_blocks;
    split = block / p.channel_blocks;
    first_group = of_channels * p.warps.block_groups;
    channel = of_channels * p.block_channels();
    first_pixel = split * p.block_pixels;
    end_pixel = std::min(first_pixel + p.block_pixels, p.pixels);
    first_line = LinePlace(p, first_pixel, 0).line;
    last_line = LinePlace(p, end_pixel - 1, first_line).line + p.reach();
  }
};

// 16-bit floats in groups of as many channels of both images, or of few that are joined, up to so many units of them. 3
// x 3 taps without dilation.
inline bool fits_line_rings(const JoinedGroups& joined, int max_units) {
  constexpr int64_t most = int64_t{1} << 30;
  constexpr int max_pixels = 1 << 14;  // of a line
  const ConvolutionSizes& c = joined.sizes;
  if (c.groups * joined.count < 2 || c.x_channels != c.y_channels || c.x_channels % unit_channels != 0) return false;
  if (c.x_channels > max_units * unit_channels || c.stride[0] != c.stride[1]) return false;
  for (int d = 0; d < 2; ++d) {
    if (c.kernel[d] != LineRing::kernel || c.dilation[d] != 1 || c.pad[d] >= c.kernel[d]) return false;
    if (std::max(c.x[d], c.y[d]) > max_pixels) return false;
  }
  constexpr int around = 2 * LineRing::kernel;
  return c.batch * (c.x[0] + around) * (c.x[1] + around) < most && c.weights() < most;
}

// Up to 24 channels, of a weight gradient up to 32. Strides of 1 and 2, the latter but for gradients with respect to x.
inline bool fits_grouped_lines(const ConvolutionSizes& of_tensors, LinesPass pass) {
  const JoinedGroups joined(of_tensors);
  const int max_units = pass == LinesPass::WeightGradient ? GroupedLines::max_units : LineRing::max_output_units;
  const int max_stride = pass == LinesPass::InputGradient ? 1 : 2;
  if (!fits_line_rings(joined, max_units) || joined.sizes.stride[0] > max_stride) return false;
  const GroupedLines p(joined, pass);
  const int count = pass == LinesPass::WeightGradient ? p.warps.step_pixels() : 16 * p.warps.tiles;
  return p.line_pixels <= LineRing::max_box && p.lines >= p.lines_of(count);
}

}  // namespace plimsoll::cuda
