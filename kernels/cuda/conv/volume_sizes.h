#pragma once

// How 3 x 3 x 3 convolutions of volumes with channels last divide their work on Hopper's warpgroups. No CUDA here:
// plans are made where there is none.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

// x [batch, x.., x_channels], w [y_channels, 3, 3, 3, x_channels] and y [batch, y.., y_channels], with strides and
// dilations of 1. Arrays are depth, down, across.
struct VolumeSizes {
  static constexpr int kernel = 3, plane_taps = kernel * kernel, taps = plane_taps * kernel;

  int64_t batch = 1;
  int x[3] = {1, 1, 1}, y[3] = {1, 1, 1}, pad[3] = {0, 0, 0};  // pad: before the first voxel
  int x_channels = 1, y_channels = 1;

  constexpr int64_t weights() const { return int64_t{taps} * x_channels * y_channels; }
};

// Channels of whole 16-byte words, and counts of 32 bits.
inline bool takes_volumes(const VolumeSizes& c) {
  constexpr int word = 8;
  constexpr int64_t most = int64_t{1} << 29;
  if (c.x_channels % word != 0 || c.y_channels % word != 0 || c.weights() > most) return false;
  for (int d = 0; d < 3; ++d)
    if (c.x[d] > most || c.y[d] > most || c.pad[d] > VolumeSizes::kernel) return false;
  return c.batch * c.x[0] * c.x[1] * c.x[2] <= most && c.batch * c.y[0] * c.y[1] * c.y[2] <= most;
}

// A convolution, or an input gradient, which is one with turned weights. A block has tiles of 256 pixels across and
// down and goes through a range of planes of its input. It multiplies each of them by the weights of all three taps in
// depth, as columns of one product beside each other, and so adds to three planes of results, of which the last one is
// complete then.
struct VolumeSweep {
  static constexpr int max_shared_bytes = 227 * 1024, border = 1024, barrier_bytes = 256;
  static constexpr int groups = 2, group_tiles = 2, tile_side = 8, tile_pixels = tile_side * tile_side;
  static constexpr int max_stages = 64, max_planes = 4, min_streamed = 3, copied_per_clock = 40;

  VolumeSizes sizes;
  bool gradient = false;
  int slot = 32, terms = 32;      // channels of a result, and of the input in one step: 32 or 64
  int tiles_down = 2, parts = 1;  // 8 x 8 tiles of a block below each other; ranges of planes

  constexpr int in(int d) const { return gradient ? sizes.y[d] : sizes.x[d]; }
  constexpr int out(int d) const { return gradient ? sizes.x[d] : sizes.y[d]; }
  constexpr int first(int d) const { return gradient ? sizes.pad[d] - (VolumeSizes::kernel - 1) : -sizes.pad[d]; }
  constexpr int in_channels() const { return gradient ? sizes.y_channels : sizes.x_channels; }
  constexpr int out_channels() const { return gradient ? sizes.x_channels : sizes.y_channels; }

  constexpr int columns() const { return slot * VolumeSizes::kernel; }
  constexpr int tiles_across() const { return groups * group_tiles / tiles_down; }
  constexpr int pixels_down() const { return tile_side * tiles_down; }
  constexpr int pixels_across() const { return tile_side * tiles_across(); }
  constexpr int lines() const { return pixels_down() + VolumeSizes::kernel - 1; }
  constexpr int line_pixels() const { return pixels_across() + VolumeSizes::kernel - 1; }
  constexpr int row_bytes() const { return terms * 2; }

  constexpr int down() const { return static_cast<int>(divide_up(out(1), pixels_down())); }
  constexpr int across() const { return static_cast<int>(divide_up(out(2), pixels_across())); }
  constexpr int channel_tiles() const { return static_cast<int>(divide_up(out_channels(), slot)); }
  constexpr int chunks() const { return static_cast<int>(divide_up(in_channels(), terms)); }
  constexpr int part_planes() const { return static_cast<int>(divide_up(out(0), parts)); }
  constexpr int64_t blocks() const { return sizes.batch * parts * down() * across() * channel_tiles(); }

  // Of shared memory: planes of one chunk, weights of one tap of a plane, results.
  constexpr int plane_bytes() const {
    return static_cast<int>(round_up(lines() * line_pixels() * row_bytes(), border));
  }
  constexpr int copied_bytes() const { return lines() * line_pixels() * row_bytes(); }
  constexpr int weight_bytes() const { return columns() * row_bytes(); }
  constexpr int staged_bytes() const { return groups * group_tiles * tile_pixels * slot * 2; }
  constexpr int weight_stages() const {
    const int room = max_shared_bytes - border - barrier_bytes - max_stages * 16 - staged_bytes();
    const int all = chunks() * VolumeSizes::plane_taps;
    if (all <= max_stages && all * weight_bytes() + 2 * plane_bytes() <= room) return all;
    return (room - 2 * plane_bytes()) / weight_bytes();
  }
  constexpr bool keeps_weights() const { return weight_stages() == chunks() * VolumeSizes::plane_taps; }
  constexpr int planes() const {
    const int room =
        max_shared_bytes - border - barrier_bytes - max_stages * 16 - staged_bytes() - weight_stages() * weight_bytes();
    const int most = room / plane_bytes();  // no std::min, which takes addresses: kernels have none of a constant
    return most < max_planes ? most : max_planes;
  }
  constexpr int shared_bytes() const {
    return border + barrier_bytes + max_stages * 16 + staged_bytes() + weight_stages() * weight_bytes() +
           planes() * plane_bytes();
  }
  // Weights as the block reads them.
  constexpr int64_t packed_bytes() const {
    return int64_t{channel_tiles()} * chunks() * VolumeSizes::plane_taps * weight_bytes();
  }

  // Clocks of a multiprocessor, fitted to 10 calls on an H200, which are within 12 % of this. Each tap has a beginning;
  // weights that do not stay are waited for.
  constexpr int64_t clocks(int64_t multiprocessors) const {
    constexpr int64_t of_plane = 460, of_tap = 100, of_streamed_tap = 200, of_block = 6000;
    const int64_t product = slot == 64 ? 67 : 35, steps = int64_t{VolumeSizes::plane_taps} * chunks();
    const int64_t plane =
        steps * (groups * group_tiles * (terms / 16) * product + of_tap + (keeps_weights() ? 0 : of_streamed_tap)) +
        of_plane;
    const int64_t copied =
        (chunks() * int64_t{copied_bytes()} + (keeps_weights() ? 0 : steps * weight_bytes())) / copied_per_clock;
    const int64_t part = part_planes();
    const int64_t all = std::min<int64_t>(part + (parts > 1 ? 2 : 0), in(0));
    return divide_up(blocks(), multiprocessors) * (all * std::max(plane, copied) + of_block);
  }
};

inline VolumeSweep choose_volume_sweep(const VolumeSizes& c, bool gradient, int64_t multiprocessors) {
  VolumeSweep best;
  int64_t least = INT64_MAX;
  for (int slot : {64, 32})
    for (int terms : {64, 32})
      for (int tiles_down : {2, 1, 4})
        for (int64_t waves = 0; waves <= 4; ++waves) {
          VolumeSweep s{c, gradient, slot, terms, tiles_down, 1};
          if (s.weight_stages() < VolumeSweep::min_streamed) continue;
          s.parts = static_cast<int>(std::clamp<int64_t>(waves * multiprocessors / s.blocks(), 1, s.out(0)));
          s.parts = static_cast<int>(divide_up(s.out(0), s.part_planes()));  // none is empty
          const int64_t clocks = s.clocks(multiprocessors);
          if (clocks < least) least = clocks, best = s;
        }
  return best;
}

// A weight gradient: dw^T = x^T dy. 32 channels of x under two taps across and down are rows of a product, and 32
// channels of dy of three planes, for the three taps in depth, its columns. A block has all taps of 32 channels of
// both, and a part of the boxes of 8 x 16 pixels of four planes of x.
struct VolumeSums {
  static constexpr int max_shared_bytes = 227 * 1024, border = 1024, barrier_bytes = 64;
  static constexpr int box_down = 8, box_across = 16, y_channels = 32, columns = y_channels * VolumeSizes::kernel;
  static constexpr int stages = 2, x_channels = 32, depth = 4, pixel_bytes = x_channels * 2;
  static constexpr int halves = 2, products = VolumeSizes::plane_taps / halves + 1, groups = 2, group_products = 3;
  static constexpr int lines = box_down + VolumeSizes::kernel - 1, line_pixels = box_across + VolumeSizes::kernel - 1;
  static constexpr int line_bytes = line_pixels * pixel_bytes, x_copied = depth * lines * line_bytes;
  static constexpr int x_bytes = (x_copied + border - 1) / border * border;
  static constexpr int plane_bytes = box_down * box_across * y_channels * 2;
  static constexpr int y_bytes = (depth + VolumeSizes::kernel - 1) * plane_bytes, stage_bytes = x_bytes + y_bytes;
  static constexpr int shared_bytes = border + barrier_bytes + stages * stage_bytes;

  VolumeSizes sizes;
  int parts = 1;

  constexpr int deep() const { return static_cast<int>(divide_up(sizes.x[0], depth)); }
  constexpr int down() const { return static_cast<int>(divide_up(sizes.y[1], box_down)); }
  constexpr int across() const { return static_cast<int>(divide_up(sizes.y[2], box_across)); }
  constexpr int64_t boxes() const { return sizes.batch * deep() * down() * across(); }
  constexpr int x_tiles() const { return static_cast<int>(divide_up(sizes.x_channels, x_channels)); }
  constexpr int y_tiles() const { return static_cast<int>(divide_up(sizes.y_channels, y_channels)); }
  constexpr int64_t blocks() const { return int64_t{x_tiles()} * y_tiles() * parts; }

  constexpr int64_t workspace_bytes() const { return parts * sizes.weights() * 4; }

  // As above, fitted to 6 calls, which are within 9 % of this.
  constexpr int64_t clocks(int64_t multiprocessors) const {
    constexpr int64_t product = 48, of_box = 200, of_block = 8000, stored_per_clock = 10, added_per_clock = 1500;
    const int64_t box = int64_t{depth} * box_down * products * product;
    const int64_t all = divide_up(boxes(), parts) * (std::max<int64_t>(box, stage_bytes / 40) + of_box);
    const int64_t sums = int64_t{VolumeSizes::taps} * x_channels * y_channels * 4;
    return divide_up(blocks(), multiprocessors) * (all + of_block + sums / stored_per_clock) +
           workspace_bytes() / added_per_clock;
  }
};

inline VolumeSums choose_volume_sums(const VolumeSizes& c, int64_t multiprocessors, int64_t max_workspace_bytes) {
  VolumeSums best;
  int64_t least = INT64_MAX;
  for (int64_t waves = 0; waves <= 3; ++waves) {
    VolumeSums s{c, 1};
    s.parts = static_cast<int>(std::clamp<int64_t>(waves * multiprocessors / s.blocks(), 1, s.boxes()));
    if (s.parts > 1 && s.workspace_bytes() > max_workspace_bytes) continue;
    const int64_t clocks = s.clocks(multiprocessors);
    if (clocks < least) least = clocks, best = s;
  }
  return best;
}

}  // namespace plimsoll::cuda
