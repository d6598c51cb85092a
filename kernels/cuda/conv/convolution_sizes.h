#pragma once

// Sizes of convolutions with channels last, and how a pass over their pixels is cut into tiles. No CUDA here: plans are
// made where there is none.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace plimsoll::cuda {

// x [batch, x.., groups * x_channels], w [groups * y_channels, kernel.., x_channels] and y [batch, y..,
// groups * y_channels]. Arrays are down, then across; a line is an image one pixel high.
struct ConvolutionSizes {
  int64_t batch = 1;
  int x[2] = {1, 1}, y[2] = {1, 1}, kernel[2] = {1, 1};
  int stride[2] = {1, 1}, pad[2] = {0, 0}, dilation[2] = {1, 1};  // pad: before the first pixel
  int groups = 1, x_channels = 1, y_channels = 1;                 // channels of one group

  constexpr int taps() const { return kernel[0] * kernel[1]; }
  constexpr int64_t weights() const { return int64_t{groups} * y_channels * taps() * x_channels; }
};

// One dimension of a pass that makes y of x, or dx of dy. The latter has a class of pixels for each remainder by the
// stride, because only they share their taps. Pixel q of a class lies at out_first + q * out_step and is a sum over j
// of tap tap_first + j * tap_step times input pixel q * in_stride + first + j * step.
struct TapAxis {
  int out_pixels = 0, out_first = 0, out_step = 1;
  int in_pixels = 0, in_stride = 1, first = 0, step = 1;
  int taps = 0, tap_first = 0, tap_step = 1;

  // Input pixels under `pixels` neighbours of a class.
  constexpr int span(int pixels) const { return (pixels - 1) * in_stride + (std::max(taps, 1) - 1) * step + 1; }
};

inline constexpr int max_classes = 4;  // by dimension: the largest stride of an input gradient

inline TapAxis forward_axis(const ConvolutionSizes& c, int d) {
  return {c.y[d], 0, 1, c.x[d], c.stride[d], -c.pad[d], c.dilation[d], c.kernel[d], 0, 1};
}

// Of the pixels `remainder`, `remainder` + stride and so on of dx. Some classes have no taps: their pixels are zeros.
inline TapAxis gradient_axis(const ConvolutionSizes& c, int d, int remainder) {
  const int stride = c.stride[d], every = stride / std::gcd(stride, c.dilation[d]);
  TapAxis axis;
  axis.out_pixels = remainder < c.x[d] ? static_cast<int>(divide_up(c.x[d] - remainder, stride)) : 0;
  axis.out_first = remainder;
  axis.out_step = stride;
  axis.in_pixels = c.y[d];
  axis.step = every * c.dilation[d] / stride;
  axis.tap_step = -every;
  for (int tap = 0; tap < c.kernel[d]; ++tap) {
    const int reach = remainder + c.pad[d] - tap * c.dilation[d];
    if (reach % stride != 0) continue;
    ++axis.taps;
    axis.tap_first = tap;
    axis.first = reach / stride;
  }
  return axis;
}

// All classes of a pass, in both dimensions.
struct TapAxes {
  TapAxis at[2][max_classes];
  int classes[2] = {1, 1};

  constexpr int largest_span(int d, int pixels) const {
    int most = 0;
    for (int i = 0; i < classes[d]; ++i) most = std::max(most, at[d][i].span(pixels));
    return most;
  }
  constexpr int most_taps(int d) const {
    int most = 0;
    for (int i = 0; i < classes[d]; ++i) most = std::max(most, at[d][i].taps);
    return most;
  }
};

inline TapAxes forward_axes(const ConvolutionSizes& c) {
  TapAxes axes;
  for (int d = 0; d < 2; ++d) axes.at[d][0] = forward_axis(c, d);
  return axes;
}

// Strides of at most max_classes.
inline TapAxes gradient_axes(const ConvolutionSizes& c) {
  TapAxes axes;
  for (int d = 0; d < 2; ++d) {
    axes.classes[d] = c.stride[d];
    for (int i = 0; i < c.stride[d]; ++i) axes.at[d][i] = gradient_axis(c, d, i);
  }
  return axes;
}

// Tiles of out pixels, at most `pixels` each.
struct PixelTiles {
  int tile[2] = {1, 1}, tiles[2] = {1, 1};

  constexpr int64_t count() const { return int64_t{tiles[0]} * tiles[1]; }

  // Of class 0, the largest one: with few pixels computed in vain, and few input pixels read by two tiles.
  PixelTiles(const TapAxes& axes, int pixels) {
    const int height = axes.at[0][0].out_pixels, width = axes.at[1][0].out_pixels;
    int64_t least = 0;
    for (int across = 1; across <= pixels; ++across) {
      if (across > width && across > 1) break;
      const int down = std::min(pixels / across, std::max(height, 1));
      const int64_t count = divide_up(height, down) * divide_up(width, across);
      const int64_t read = int64_t{axes.largest_span(0, down)} * axes.largest_span(1, across);
      const int64_t cost = count * (2 * pixels + read);
      if (least != 0 && cost >= least) continue;
      least = cost;
      tile[0] = down, tile[1] = across;
      tiles[0] = static_cast<int>(divide_up(height, down)), tiles[1] = static_cast<int>(divide_up(width, across));
    }
  }
};

}  // namespace plimsoll::cuda
