#pragma once

// How weight-stationary 3 x 3 convolutions of groups, and their input gradients, divide their work on Hopper.

#include "kernels/cuda/conv/stationary_images.h"

namespace plimsoll::cuda {

// A block keeps its weights in registers as left operands, with zeros between groups. The right operand of a product is
// a chunk: a run of pixels of a plane. Columns that lie between two lines are computed in vain. The copy engine stores
// the results of a chunk as one box.
struct GroupedStationary : StationaryImages {
  static constexpr int narrowest = 56, narrow = 104, wide = 120, widest = 128, staged_chunks = 2, spare_bytes = 512;

  bool gradient;
  int results[2];                   // pixels of the result
  int tile_pixels = 0, across = 0;  // pixels of a tile's line, and tiles of an image across
  int columns = 0;                  // of a product, one that has_kernel
  int chunk_lines = 0, chunk_images = 1;
  int last_splits = 0;                      // splits of the last block of channels, which may have one part only
  int place_step = 0, last_place_step = 0;  // of a block's place among its splits, from one tile to the next
  QuickDivisor of_across, of_image, of_line, of_weights, of_splits;

  GroupedStationary(const ConvolutionSizes& c, bool of_gradient)
      : StationaryImages(c, of_gradient),
        gradient(of_gradient),
        results{gradient ? c.x[0] : c.y[0], gradient ? c.x[1] : c.y[1]} {
    choose_tile();
    if (stages == 0) return;
    tiles = static_cast<int>(all_tiles());
    choose_splits();
    place_step = step_of(splits), last_place_step = step_of(last_splits);
    of_down = QuickDivisor(down), of_across = QuickDivisor(across), of_splits = QuickDivisor(splits);
    of_image = QuickDivisor(image_pixels()), of_line = QuickDivisor(line_pixels);
    of_weights = QuickDivisor(taps * units);
  }

  // Products of 16 channels each. With an odd number of units the last one reads 8 channels too many, whose weights are
  // zeros.
  constexpr int steps() const { return static_cast<int>(divide_up(part_units, 2)); }
  constexpr int channels_read() const { return ((parts - 1) * part_units + 2 * steps()) * unit_channels; }
  constexpr int taps_down() const { return shifts + kernel - 1; }
  // Pixels of zeros behind the last line of a plane, which taps of its last pixels read.
  constexpr int zero_pixels() const {
    return (tile_lines / shifts + reach_down - plane_lines) * line_pixels + tile_pixels + reach_across - line_pixels;
  }
  constexpr int plane_bytes() const {
    return static_cast<int>(round_up((plane_pixels() + zero_pixels()) * pixel_bytes, tile_border));
  }
  constexpr int stage_bytes() const { return planes() * plane_bytes(); }
  constexpr int chunk_rows() const { return shifts * chunk_lines; }  // lines of an image
  constexpr int chunk_bytes() const {
    return static_cast<int>(
        round_up(chunk_images * chunk_rows() * tile_pixels * scale * scale * pixel_bytes + spare_bytes, tile_border));
  }
  // Weights wait behind the first stage until they are in registers. Their rows lie an odd number of units apart, so
  // that eight of them are read without bank conflicts.
  constexpr int weight_pitch() const { return odd_units(taps * units); }
  constexpr int64_t shared_bytes() const {
    const int64_t weights = int64_t{channels_of_block()} * weight_pitch() * 16, ring = stages * int64_t{stage_bytes()};
    // Products read columns behind the last line of the last plane, too.
    const int64_t behind = ring - plane_bytes() + int64_t{plane_pixels() + zero_pixels() + columns} * pixel_bytes;
    return tile_border + std::max({ring + staged_chunks * chunk_bytes(), behind, stage_bytes() + weights});
  }
  int64_t blocks() const { return int64_t{splits} * (channel_blocks - 1) + last_splits; }
  int64_t all_tiles() const { return divide_up(batch, images) * down * across; }
  // Products of [64, 16] by [16, columns], of all blocks together, and pixels that the copy engine brings them.
  double products() const { return products_of_tile() * static_cast<double>(all_tiles()) * channel_blocks; }
  double pixels_read() const {
    return double{1} * planes() * plane_pixels() * static_cast<double>(all_tiles()) * channel_blocks;
  }

 private:
  // Places of squares need registers, as do the weights of 64 rows without a second line.
  constexpr bool has_kernel(int of_product) const {
    if (scale > 1) return of_product <= narrow;
    return of_product >= narrow && (of_product < widest || shifts > 1);
  }
  double products_of_tile() const {
    const double chunks =
        double{1} * images / chunk_images * static_cast<double>(divide_up(out[0], chunk_rows())) / down;
    return chunks * parts_there() * taps_down() * kernel * steps();
  }
  // Chooses the tile that takes the fewest cycles.
  void choose_tile() {
    constexpr int most_across = 8;
    double least = 0;
    GroupedStationary best = *this;
    const auto fewest = static_cast<int>(divide_up(out[1], scale > 1 ? narrow : wide));
    for (across = fewest; across < fewest + most_across; ++across) {
      tile_pixels = static_cast<int>(divide_up(out[1], across));
      if (divide_up(out[1], tile_pixels) != across) continue;
      line_pixels = tile_pixels + reach_across - (across == 1 ? shared_zeros(1) : 0);
      for (int of_product : {narrowest, narrow, wide, widest}) {
        columns = of_product;
        if (!has_kernel(columns) || !choose_chunk()) continue;
        const int most_images = down == 1 && across == 1 ? std::min(batch, most_tile_images) : 1;
        for (images = chunk_images; images < most_images + chunk_images; images += chunk_images) {
          set_stages();
          if (stages < min_stages) break;
          const double cycles = cycles_of_block();
          if (least > 0 && cycles >= least) continue;
          least = cycles, best = *this;
        }
      }
    }
    *this = best;
  }
  // Chooses the chunk for the given columns and tile width, and the tallest tile of which two stages fit.
  bool choose_chunk() {
    const int all_lines = static_cast<int>(divide_up(out[0], shifts)),
              fitting = (columns + line_pixels - tile_pixels) / line_pixels;
    if (fitting < 1) return false;
    const auto chunks = static_cast<int>(divide_up(all_lines, fitting));
    chunk_lines = static_cast<int>(divide_up(all_lines, chunks));
    chunk_images = images = 1;
    for (int count = 1; count <= chunks; ++count) {
      set_lines(static_cast<int>(divide_up(chunks, count)) * chunk_rows(), across == 1);
      set_stages();
      if (stages >= min_stages) break;
    }
    if (chunks == 1 && across == 1) {
      const int run = (chunk_lines - 1) * line_pixels + tile_pixels;
      chunk_images = std::min(1 + (columns - run) / image_pixels(), batch);
    }
    return true;
  }
  void set_stages() {
    const int64_t room = max_shared_bytes - tile_border - staged_chunks * chunk_bytes();
    const bool has_boxes = has_box() && std::max(chunk_rows(), tile_pixels) * scale <= max_box;
    stages = has_boxes ? static_cast<int>(std::clamp<int64_t>(room / stage_bytes(), 0, max_stages)) : 0;
    if (stages > 0 && shared_bytes() > max_shared_bytes) stages = 0;
  }
  double cycles_of_block() const {
    const double lines = double{1} * out[0] / down,
                 rows = planes() * double{1} * plane_pixels() + images * lines * out[1] / across * scale * scale;
    return cycles_of(products_of_tile() * columns / 2, row_cycles * rows, all_tiles());
  }
  // The last tiles of images may have fewer lines. Where each block would have the same part of images all the time, it
  // takes the next one's place for the next tile.
  constexpr int step_of(int of_splits) const {
    return std::gcd(of_splits + 1, down * across) < std::gcd(of_splits, down * across) ? 1 : 0;
  }
  // A last block of channels with fewer parts gets proportionally fewer splits.
  void choose_splits() {
    const auto even = [&](int64_t wanted) {
      const int64_t count = std::clamp<int64_t>(wanted, 1, tiles);
      return static_cast<int>(divide_up(tiles, divide_up(tiles, count)));
    };
    const int part_groups = block_groups / parts, all_parts = static_cast<int>(divide_up(groups, part_groups)),
              last_parts = all_parts - (channel_blocks - 1) * parts;
    splits = last_splits = even(blocks_of_channels());
    if (last_parts == parts || channel_blocks == 1) return;
    const auto rest = [&] { return wanted_blocks - (channel_blocks - 1) * int64_t{splits}; };
    splits = even((wanted_blocks * parts + all_parts / 2) / all_parts);
    while (splits > 1 && rest() < even(divide_up(splits * last_parts, parts))) --splits;
    last_splits = even(rest());
  }

  static constexpr int most_tile_images = 32;
};

// The work of a block: its channels, and every splits-th tile, or of each `splits` tiles the one that is `place_step`
// behind the place that it had before.
struct StationaryBlock {
  int place, place_step, splits, channel, channels, parts;

  constexpr StationaryBlock(const GroupedStationary& p, int block) {
    const int of_channels = std::min(p.of_splits.quotient(block), p.channel_blocks - 1);
    place = block - of_channels * p.splits;
    const bool is_last = of_channels == p.channel_blocks - 1;
    splits = is_last ? p.last_splits : p.splits, place_step = is_last ? p.last_place_step : p.place_step;
    channel = of_channels * p.channels_of_block();
    channels = std::min(p.channels_of_block(), p.channels() - channel);
    parts = channels <= p.part_units * unit_channels ? 1 : p.parts;
  }
};

// Goes through the tiles of a block.
class StationaryTiles {
 public:
  constexpr StationaryTiles(const GroupedStationary& p, const StationaryBlock& mine)
      : p_(p), mine_(mine), place_(mine.place) {}

  constexpr bool are_left() const { return tile() < p_.tiles; }
  constexpr bool is_second() const { return round_ == mine_.splits; }
  constexpr int tile() const { return round_ + place_; }
  constexpr void advance() {
    round_ += mine_.splits, place_ += mine_.place_step;
    if (place_ == mine_.splits) place_ = 0;
  }

 private:
  const GroupedStationary& p_;
  const StationaryBlock& mine_;
  int round_ = 0, place_;  // the round's first tile, and the place of this block's one
};

// The first image, line and pixel of a tile's results, and how many images and lines of them exist.
struct StationaryTile {
  int image, line, pixel, images, lines;

  constexpr StationaryTile(const GroupedStationary& p, int tile) {
    const int strip = p.of_across.quotient(tile), of_images = p.of_down.quotient(strip);
    pixel = (tile - strip * p.across) * p.tile_pixels;
    line = (strip - of_images * p.down) * p.tile_lines;
    image = of_images * p.images;
    images = std::min(p.images, p.batch - image);
    lines = std::min(p.tile_lines, p.out[0] - line);
  }
};

// The image, plane line and pixel that a column of a chunk's products stands for. is_there is false between lines.
struct ChunkColumn {
  int image, line, pixel;

  constexpr ChunkColumn(const GroupedStationary& p, int column) {
    image = p.of_image.quotient(column);
    const int in_image = column - image * p.image_pixels();
    line = p.of_line.quotient(in_image);
    pixel = in_image - line * p.line_pixels;
  }
  constexpr bool is_there(const GroupedStationary& p) const {
    return pixel < p.tile_pixels && line < p.chunk_lines && image < p.chunk_images;
  }
  // The index of the result among the pixels of the chunk's box: for one of the lines of a product, or for the first
  // result of a square.
  constexpr int in_box(const GroupedStationary& p, int shift) const {
    const int row = image * p.chunk_rows() + line * p.shifts + shift;
    return (row * p.scale * p.tile_pixels + pixel) * p.scale;
  }
};

// In one dimension the first result of a square needs the middle tap, and the second one needs the two outer taps.
// tap: its index; ahead: how many pixels of dy beyond the square's first one it reads.
struct SquareTap {
  int tap, ahead;

  static constexpr int count(int result) { return result == 0 ? 1 : 2; }
  constexpr SquareTap(int result, int i) : tap(result == 0 ? 1 : 2 * i), ahead(result == 0 ? 0 : 1 - i) {}
};

// Input gradients with a stride need a pad of 1 in front.
inline bool fits_grouped_stationary(const ConvolutionSizes& c, bool gradient) {
  constexpr int max_stride = 2;
  if (!fits_stationary_images(c, max_stride)) return false;
  if (gradient && c.stride[0] > 1 && (c.pad[0] != 1 || c.pad[1] != 1)) return false;
  return GroupedStationary(c, gradient).stages >= StationaryImages::min_stages;
}

}  // namespace plimsoll::cuda
