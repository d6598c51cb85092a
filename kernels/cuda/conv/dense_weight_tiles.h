#pragma once

// How weight gradients of convolutions without groups divide their work on Hopper's warpgroups. No CUDA here: plans are
// made where there is none.

#include "kernels/cuda/conv/convolution_sizes.h"

namespace plimsoll::cuda {

// What a block makes of dw: 64 channels of y for each of `row_groups`, and for each of `column_groups` as many `sets`
// of columns. A set is 64 channels of x under `taps` neighbours across, which read the same pixels of shared memory.
struct DenseTileShape {
  int row_groups, column_groups, sets, taps;

  constexpr int groups() const { return row_groups * column_groups; }
  constexpr int block_sets() const { return column_groups * sets; }
  constexpr int rows() const { return row_groups * 64; }
  constexpr int columns() const { return block_sets() * taps * 64; }
  constexpr int64_t elements() const { return int64_t{rows()} * columns(); }
  constexpr bool operator==(const DenseTileShape&) const = default;
};

inline constexpr DenseTileShape dense_tile_shapes[] = {{2, 1, 1, 3}, {1, 3, 1, 3}, {2, 1, 4, 1}, {1, 2, 1, 2}};

struct PixelRange {
  int begin, end;
  constexpr int count() const { return end - begin; }
};

// Where columns of a set lie in dw: from this channel of x on, under `taps` taps from (down, across) on.
struct DenseSet {
  int channel, down, across;
};

// A block makes a tile of dw from one of `parts` equal parts of its steps. A step is a box of pixels of y, and of x
// those under them and under `taps` - 1 neighbours. Where there are several parts, their sums go through the workspace.
struct DenseWeightTiles {
  static constexpr int step_pixels = 64, set_channels = 64, row_bytes = 128, stage_border = 1024;
  static constexpr int max_box = 256, max_stride = 8, max_shared_bytes = 227 * 1024, max_stages = 8, barrier_bytes = 16;

  ConvolutionSizes c;  // one group
  DenseTileShape shape;
  int box[2], box_images;  // pixels of y in a step: down, across, and of how many images; 64 in all
  int parts = 1;

  // Pixels in shared memory from one tap to the next.
  constexpr int shift() const { return c.dilation[1] / c.stride[1]; }
  constexpr int halo() const { return (shape.taps - 1) * shift(); }
  constexpr int x_pixels() const { return box_images * box[0] * (box[1] + halo()); }
  constexpr int dy_bytes() const { return shape.row_groups * step_pixels * row_bytes; }
  constexpr int set_bytes() const { return static_cast<int>(round_up(x_pixels() * row_bytes, stage_border)); }
  constexpr int copied_bytes() const { return dy_bytes() + shape.block_sets() * x_pixels() * row_bytes; }
  constexpr int stage_bytes() const { return dy_bytes() + shape.block_sets() * set_bytes(); }
  constexpr int stages() const {
    const int most = (max_shared_bytes - stage_border) / (stage_bytes() + barrier_bytes);
    return most < max_stages ? most : max_stages;
  }
  constexpr int shared_bytes() const { return stage_border + stages() * (stage_bytes() + barrier_bytes); }

  constexpr int channel_sets() const { return static_cast<int>(divide_up(c.x_channels, set_channels)); }
  constexpr int tap_sets() const { return static_cast<int>(divide_up(c.kernel[1], shape.taps)); }
  constexpr int all_sets() const { return c.kernel[0] * tap_sets() * channel_sets(); }
  constexpr DenseSet set(int index) const {
    const int taps = index / channel_sets();
    return {index % channel_sets() * set_channels, taps / tap_sets(), taps % tap_sets() * shape.taps};
  }

  constexpr int down() const { return static_cast<int>(divide_up(c.y_channels, shape.rows())); }
  constexpr int across() const { return static_cast<int>(divide_up(all_sets(), shape.block_sets())); }
  constexpr int tiles() const { return down() * across(); }
  constexpr int64_t blocks() const { return int64_t{tiles()} * parts; }
  constexpr int64_t workspace() const { return parts > 1 ? blocks() * shape.elements() : 0; }  // floats

  // Pixels of y for which one of these taps lies within x.
  constexpr PixelRange pixels_under(int d, int first_tap, int last_tap) const {
    const int least = c.pad[d] - last_tap * c.dilation[d], most = c.x[d] - 1 + c.pad[d] - first_tap * c.dilation[d];
    const int begin = least > 0 ? static_cast<int>(divide_up(least, c.stride[d])) : 0;
    const int end = most < 0 ? 0 : std::min(c.y[d], most / c.stride[d] + 1);
    return {begin, std::max(begin, end)};
  }
  // Of all taps of a tile: pixels down and across.
  constexpr PixelRange pixels_of(int d, int tile_across) const {
    const int first = tile_across * shape.block_sets(), last = std::min(first + shape.block_sets(), all_sets()) - 1;
    const DenseSet from = set(first), to = set(last);
    if (d == 0) return pixels_under(0, from.down, to.down);
    if (from.down != to.down) return pixels_under(1, 0, c.kernel[1] - 1);
    return pixels_under(1, from.across, std::min(to.across + shape.taps, c.kernel[1]) - 1);
  }
  constexpr int steps_of(int tile_across) const {
    return static_cast<int>(divide_up(c.batch, box_images) * divide_up(pixels_of(0, tile_across).count(), box[0]) *
                            divide_up(pixels_of(1, tile_across).count(), box[1]));
  }

  // Time in clocks of a multiprocessor; numbers are of an H100. Copies of a step come from the cache while the one
  // before is multiplied.
  constexpr int64_t step_clocks() const {
    constexpr int64_t products_per_clock = 1900, copied_per_clock = 42;
    return std::max(step_pixels * shape.elements() / products_per_clock, int64_t{copied_bytes()} / copied_per_clock);
  }
  // A block takes a while until its first tiles arrive, and stores 20 bytes a clock; the second launch reads 1,765
  // bytes a clock.
  constexpr int64_t clocks(int64_t multiprocessors) const {
    constexpr int64_t begin = 4400, second_launch = 2500;
    const int64_t bytes = shape.elements() * static_cast<int64_t>(sizeof(float)), step = step_clocks();
    int64_t all = 0, longest = 1;
    for (int tile = 0; tile < across(); ++tile) {
      const int64_t block = begin + divide_up(steps_of(tile), parts) * step + bytes / 20;
      all += block * down() * parts;
      longest = std::max(longest, block);
    }
    // Blocks of unlike lengths end one after the other, those of like ones in waves.
    const int64_t unlike = std::max(longest, all / multiprocessors + longest / 2);
    return std::min(unlike, divide_up(blocks(), multiprocessors) * longest) +
           (parts > 1 ? second_launch + blocks() * bytes / 1765 : 0);
  }
};

// Do steps of these sizes exist, and fit at least three of them in shared memory?
constexpr bool fits(const DenseWeightTiles& t) {
  constexpr int min_stages = 3;
  if (t.c.stride[0] > DenseWeightTiles::max_stride || t.c.stride[1] > DenseWeightTiles::max_stride) return false;
  if (t.shape.taps == 2 && t.c.kernel[1] % 2 != 0) return false;
  if (t.shape.taps > 1 && (t.c.kernel[1] == 1 || t.c.dilation[1] % t.c.stride[1] != 0)) return false;
  if ((t.box[1] + t.halo()) * t.c.stride[1] > DenseWeightTiles::max_box) return false;
  return t.box[0] * t.c.stride[0] <= DenseWeightTiles::max_box && t.stages() >= min_stages;
}

// Sizes that the copy engine and 32-bit counts allow: channels of whole 16-byte words, without groups. A single tap is
// left to others, which are quicker at products of matrices.
inline bool takes_dense_weights(const ConvolutionSizes& c) {
  constexpr int64_t most = int64_t{1} << 30;
  constexpr int word = 8;
  if (c.groups != 1 || c.taps() == 1 || c.x_channels % word != 0 || c.y_channels % word != 0) return false;
  for (int d = 0; d < 2; ++d)
    if (c.stride[d] > DenseWeightTiles::max_stride || int64_t{c.kernel[d]} * c.dilation[d] > most ||
        int64_t{c.y[d]} * c.stride[d] > most)
      return false;
  return c.batch * c.x[0] * c.x[1] <= most && c.batch * c.y[0] * c.y[1] <= most;
}

// The box of pixels in which the steps of all tiles take the least time; none: no steps of this shape fit. Eight pixels
// across are the least where taps share pixels, since products read as many rows at once.
inline DenseWeightTiles with_best_box(const ConvolutionSizes& c, const DenseTileShape& shape) {
  DenseWeightTiles best{c, shape, {0, 0}, 0};
  int64_t least = INT64_MAX;
  constexpr int pixels = DenseWeightTiles::step_pixels;
  for (int across = pixels; across >= (shape.taps > 1 ? 8 : 1); across /= 2)
    for (int down = pixels / across; down >= 1; down /= 2) {
      const DenseWeightTiles t{c, shape, {down, across}, pixels / across / down};
      if (!fits(t)) continue;
      int64_t steps = 0;
      for (int tile = 0; tile < t.across(); ++tile) steps += t.steps_of(tile);
      if (steps * t.step_clocks() < least) least = steps * t.step_clocks(), best = t;
    }
  return best;
}

// The quickest of all tiles and of as many parts as fill the multiprocessors once, twice or more often, within so many
// floats of workspace; without steps where none fits.
inline DenseWeightTiles choose_dense_weight_tiles(const ConvolutionSizes& c, int64_t multiprocessors,
                                                  int64_t max_workspace) {
  constexpr int64_t max_waves = 12;
  DenseWeightTiles best{};
  int64_t least = INT64_MAX;
  for (const DenseTileShape& shape : dense_tile_shapes) {
    DenseWeightTiles t = with_best_box(c, shape);
    if (t.box_images == 0) continue;
    int most_steps = 1, before = 0;
    for (int tile = 0; tile < t.across(); ++tile) most_steps = std::max(most_steps, t.steps_of(tile));
    for (int64_t waves = 0; waves <= max_waves; ++waves) {
      t.parts = static_cast<int>(std::clamp<int64_t>(waves * multiprocessors / t.tiles(), 1, most_steps));
      if (t.parts == before || t.workspace() > max_workspace) continue;
      before = t.parts;
      const int64_t clocks = t.clocks(multiprocessors);
      if (clocks < least) least = clocks, best = t;
    }
  }
  return best;
}

}  // namespace plimsoll::cuda
