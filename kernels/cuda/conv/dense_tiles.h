#pragma once

// How convolutions without groups and their input gradients divide their work on Hopper's warpgroups. No CUDA here:
// plans are made where there is none.

#include "kernels/cuda/conv/convolution_sizes.h"

namespace plimsoll::cuda {

// One dimension of a pass that makes pixels of an image of another's: pixel i is a sum over taps k of that one's pixel
// i * stride + first + k * step.
struct DenseAxis {
  int out = 1, in = 1, taps = 1, stride = 1, first = 0, step = 1;

  constexpr int first_of(int begin, int tap) const { return begin * stride + first + tap * step; }
  // Taps under which one of these pixels has a pixel of the other image. They are neighbours.
  constexpr bool reads(int begin, int pixels, int tap) const {
    const int least = first_of(begin, tap), most = least + (std::min(pixels, out - begin) - 1) * stride;
    return least < in && most >= 0;
  }
  constexpr int first_tap(int begin, int pixels) const {
    int tap = 0;
    while (tap < taps && !reads(begin, pixels, tap)) ++tap;
    return tap;
  }
  constexpr int end_tap(int begin, int pixels) const {
    int tap = taps;
    while (tap > 0 && !reads(begin, pixels, tap - 1)) --tap;
    return tap;
  }
  // Of all boxes of so many pixels.
  constexpr int64_t all_taps(int pixels) const {
    int64_t all = 0;
    for (int begin = 0; begin < out; begin += pixels)
      all += std::max(0, end_tap(begin, pixels) - first_tap(begin, pixels));
    return all;
  }
};

// Tiles of 128 pixels, in two boxes of which one follows the other along the outermost dimension of more than one, by
// `columns` channels. A step has 64 channels of the other image under one tap; taps that are outside it for all pixels
// of a tile are passed over.
struct DenseTiles {
  static constexpr int box_pixels = 64, step_channels = 64, row_bytes = 128, stage_border = 1024, halves = 2;
  static constexpr int max_stride = 8, max_box = 256, max_shared_bytes = 227 * 1024, max_stages = 8;
  static constexpr int barrier_bytes = 256;

  int64_t batch;
  DenseAxis axes[2];
  int in_channels, out_channels;
  bool gradient;
  int columns;
  int box[2], box_images;  // of one half: down, across, and images; 64 pixels in all

  constexpr int tile_images() const { return box_images > 1 ? box_images * halves : 1; }
  constexpr int tile_down() const { return box_images == 1 && box[0] > 1 ? box[0] * halves : box[0]; }
  constexpr int tile_across() const { return box_images == 1 && box[0] == 1 ? box[1] * halves : box[1]; }

  constexpr int images() const { return static_cast<int>(divide_up(batch, tile_images())); }
  constexpr int down() const { return static_cast<int>(divide_up(axes[0].out, tile_down())); }
  constexpr int across() const { return static_cast<int>(divide_up(axes[1].out, tile_across())); }
  constexpr int channel_tiles() const { return static_cast<int>(divide_up(out_channels, columns)); }
  constexpr int64_t tiles() const { return int64_t{images()} * down() * across() * channel_tiles(); }
  constexpr int channel_steps() const { return static_cast<int>(divide_up(in_channels, step_channels)); }
  constexpr int64_t all_steps() const {
    return axes[0].all_taps(tile_down()) * axes[1].all_taps(tile_across()) * images() * channel_tiles() *
           channel_steps();
  }

  constexpr int stage_bytes() const { return (halves * box_pixels + columns) * row_bytes; }
  constexpr int staged_bytes() const { return halves * box_pixels * columns * 2; }
  constexpr int stages() const {
    const int most = (max_shared_bytes - stage_border - barrier_bytes - staged_bytes()) / stage_bytes();
    return most < max_stages ? most : max_stages;
  }
  constexpr int shared_bytes() const {
    return stage_border + barrier_bytes + staged_bytes() + stages() * stage_bytes();
  }

  // Time in clocks of a multiprocessor; numbers are of an H100.
  constexpr int64_t clocks(int64_t multiprocessors) const {
    constexpr int64_t products_per_clock = 1900, copied_per_clock = 46, of_tile = 1500;
    const int64_t step = std::max<int64_t>(int64_t{halves} * box_pixels * step_channels * columns / products_per_clock,
                                           stage_bytes() / copied_per_clock);
    const int64_t blocks = std::min(multiprocessors, std::max<int64_t>(tiles(), 1));
    const int64_t block_tiles = divide_up(tiles(), blocks);
    const int64_t steps = divide_up(all_steps() * block_tiles, std::max<int64_t>(tiles(), 1));
    return steps * step + block_tiles * of_tile;
  }
};

inline DenseAxis dense_axis(const ConvolutionSizes& c, bool gradient, int d) {
  if (gradient) return {c.x[d], c.y[d], c.kernel[d], 1, c.pad[d], -c.dilation[d]};
  return {c.y[d], c.x[d], c.kernel[d], c.stride[d], -c.pad[d], c.dilation[d]};
}

// Sizes that the copy engine and 32-bit counts allow: channels of whole 16-byte words, several taps, without groups,
// and gradients without strides.
inline bool takes_dense(const ConvolutionSizes& c, bool gradient) {
  constexpr int64_t most = int64_t{1} << 29;
  constexpr int word = 8;
  if (c.groups != 1 || c.taps() == 1 || c.x_channels % word != 0 || c.y_channels % word != 0) return false;
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] > (gradient ? 1 : DenseTiles::max_stride) || int64_t{c.kernel[d]} * c.dilation[d] > most ||
        c.pad[d] > most || int64_t{c.y[d]} * c.stride[d] > most)
      return false;
  return c.batch * c.x[0] * c.x[1] <= most && c.batch * c.y[0] * c.y[1] <= most;
}

// The quickest columns and boxes. Gradients have no fewer columns than 128.
inline DenseTiles choose_dense_tiles(const ConvolutionSizes& c, bool gradient, int64_t multiprocessors,
                                     int least_columns = 128) {
  DenseTiles best{};
  int64_t least = INT64_MAX;
  for (int columns = 256; columns >= least_columns; columns /= 2)
    for (int across = DenseTiles::box_pixels; across >= 1; across /= 2)
      for (int down = DenseTiles::box_pixels / across; down >= 1; down /= 2) {
        const DenseTiles t{c.batch,
                           {dense_axis(c, gradient, 0), dense_axis(c, gradient, 1)},
                           gradient ? c.y_channels : c.x_channels,
                           gradient ? c.x_channels : c.y_channels,
                           gradient,
                           columns,
                           {down, across},
                           DenseTiles::box_pixels / across / down};
        if (across * t.axes[1].stride > DenseTiles::max_box || down * t.axes[0].stride > DenseTiles::max_box) continue;
        const int64_t clocks = t.clocks(multiprocessors);
        if (clocks < least) least = clocks, best = t;
      }
  return best;
}

}  // namespace plimsoll::cuda
