#pragma once

// Images as one row of pixels, of which kernels take any run as a tile. No CUDA here: plans are made where there is
// none.

#include "kernels/cuda/conv/convolution_sizes.h"

namespace plimsoll::cuda {

inline constexpr int unit_channels = 8;  // 16-bit floats of a 16-byte unit of shared memory

// Rows of shared memory an odd number of units apart: eight of them are read without conflicts.
constexpr int odd_units(int64_t units) { return static_cast<int>(units) | 1; }

// What a tap means along one dimension: a result of class `out_class` reads pixels of class `in_class`, `distance`
// pixels of that class further on.
struct RunTap {
  int out_class, in_class, distance;
};

// One dimension of a pass that makes y of x, or dx of dy. Pixels of x have a class for each remainder by the stride,
// and a class is a row of its own: pixel i of class r is pixel i * stride + r. Lines lie one behind the other, and each
// begins with `lead` zeros, so that no distance is negative.
struct RunAxis {
  int out = 1, in = 1;                  // pixels
  int out_classes = 1, in_classes = 1;  // one of them is the stride, the other 1
  int lead = 0, period = 1;             // period: from one line to the next, zeros included

  RunAxis() = default;
  RunAxis(const ConvolutionSizes& c, bool gradient, int d)
      : out(gradient ? c.x[d] : c.y[d]),
        in(gradient ? c.y[d] : c.x[d]),
        out_classes(gradient ? c.stride[d] : 1),
        in_classes(gradient ? 1 : c.stride[d]) {
    int farthest = -max_reach;
    for (int k = 0; k < c.kernel[d]; ++k) {
      const int distance = tap(c, gradient, d, k).distance;
      lead = std::max(lead, -distance);
      farthest = std::max(farthest, distance);
    }
    const int reach = std::max(farthest + lead, 0), lines_out = static_cast<int>(divide_up(out, out_classes));
    // The zeros before a line follow the one before it too.
    const int shared_zeros = std::min(lead, reach);
    period = std::max({lines_out, lines_out + reach - shared_zeros, std::min(in_pixels(0) + lead, lines_out + reach)});
  }

  // The distance does not count the lead.
  static constexpr RunTap tap(const ConvolutionSizes& c, bool gradient, int d, int k) {
    const int stride = c.stride[d], moved = k * c.dilation[d] - c.pad[d];
    const int quotient = moved >= 0 ? moved / stride : -((stride - 1 - moved) / stride);
    const int remainder = moved - quotient * stride;
    return gradient ? RunTap{remainder, 0, -quotient} : RunTap{0, remainder, quotient};
  }
  int in_pixels(int in_class) const { return static_cast<int>(divide_up(std::max(0, in - in_class), in_classes)); }

 private:
  static constexpr int max_reach = 1 << 30;
};

// The pixels of one class that lie under a tile, in planes of one unit of channels each.
struct RunPlanes {
  int in_class[2] = {0, 0}, pixels[2] = {0, 0};  // pixels: of a line, and lines
  int first = 0, positions = 0;                  // of the run, from the tile's first position on
  int at = 0, plane_units = 0;                   // units: where planes begin, and one of them
};

// All images in one row of positions: lines of the first one, then of the next. The out pixels of a class of a position
// are found without the lead.
struct ImageRuns {
  static constexpr int max_planes = max_classes * max_classes;
  static constexpr int64_t max_units = 1 << 20;  // more than any shared memory

  RunAxis axes[2];
  int64_t batch = 0, image_positions = 0;
  int classes = 0;  // of in pixels that any tap reads
  RunPlanes planes[max_planes];

  ImageRuns(const ConvolutionSizes& c, bool gradient) : batch(c.batch) {
    for (int d = 0; d < 2; ++d) axes[d] = RunAxis(c, gradient, d);
    image_positions = int64_t{axes[0].period} * axes[1].period;
  }

  // Planes of tiles of so many positions, of `units` units of channels each; returns the units of all.
  int64_t lay_out(const ConvolutionSizes& c, bool gradient, int tile, int units) {
    Reach reaches[2][max_classes];
    for (int d = 0; d < 2; ++d)
      for (int k = 0; k < c.kernel[d]; ++k) {
        const RunTap tap = RunAxis::tap(c, gradient, d, k);
        reaches[d][tap.in_class].add(tap.distance + axes[d].lead);
      }
    int64_t at = 0;
    classes = 0;
    for (int down = 0; down < axes[0].in_classes; ++down)
      for (int across = 0; across < axes[1].in_classes; ++across) {
        const Reach &rows = reaches[0][down], &columns = reaches[1][across];
        if (rows.last < 0 || columns.last < 0) continue;
        RunPlanes& p = planes[classes++];
        p.in_class[0] = down, p.in_class[1] = across;
        for (int d = 0; d < 2; ++d) p.pixels[d] = axes[d].in_pixels(p.in_class[d]);
        p.first = rows.first * axes[1].period + columns.first;
        p.positions = tile + rows.last * axes[1].period + columns.last - p.first;
        p.at = static_cast<int>(std::min<int64_t>(at, max_units));
        p.plane_units = odd_units(p.positions);
        at += int64_t{units} * p.plane_units;
      }
    return at;
  }

  // The planes that a tap reads, and where it reads unit `unit` of channels there for a tile's first position.
  constexpr const RunPlanes& planes_of(const RunTap& down, const RunTap& across) const {
    int i = 0;
    while (planes[i].in_class[0] != down.in_class || planes[i].in_class[1] != across.in_class) ++i;
    return planes[i];
  }
  constexpr int unit_of(const RunTap& down, const RunTap& across, int unit) const {
    const RunPlanes& p = planes_of(down, across);
    const int position = (down.distance + axes[0].lead) * axes[1].period + across.distance + axes[1].lead;
    return p.at + unit * p.plane_units + position - p.first;
  }

 private:
  struct Reach {
    int first = 1 << 30, last = -1;
    void add(int at) { first = std::min(first, at), last = std::max(last, at); }
  };
};

// Sizes within which distances in a run are 32 bits wide.
inline bool has_short_distances(const ConvolutionSizes& c) {
  constexpr int max_pixels = 1 << 16, max_distance = 1 << 12;  // of a line; of a tap
  for (int d = 0; d < 2; ++d) {
    if (c.stride[d] > max_classes || std::max(c.x[d], c.y[d]) > max_pixels) return false;
    if (c.pad[d] < 0 || c.pad[d] > max_distance || int64_t{c.kernel[d]} * c.dilation[d] > max_distance) return false;
  }
  return true;
}

// The longest piece of memory, up to a unit, of which pixels of groups of so many 16-bit floats are made.
constexpr int word_bytes_of(int channels) { return 2 * std::gcd(unit_channels, channels); }

// Positions of all images and words of tensors are counted in 32 bits.
inline bool fits_in_counts(const ConvolutionSizes& c, const ImageRuns& runs) {
  const int64_t x_words = c.batch * c.x[0] * c.x[1] * c.groups * c.x_channels * 2 / word_bytes_of(c.x_channels);
  const int64_t y_words = c.batch * c.y[0] * c.y[1] * c.groups * c.y_channels * 2 / word_bytes_of(c.y_channels);
  int64_t behind = 0;
  for (int i = 0; i < runs.classes; ++i)
    behind = std::max<int64_t>(behind, runs.planes[i].first + runs.planes[i].positions);
  return runs.batch * runs.image_positions + behind < int64_t{1} << 31 && std::max(x_words, y_words) < int64_t{1} << 32;
}

}  // namespace plimsoll::cuda
