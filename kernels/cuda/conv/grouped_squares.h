#pragma once

// How input gradients of 3 x 3 convolutions of groups of a few channels with a stride of 2 divide their work among
// warps on Hopper. No CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/grouped_lines.h"

namespace plimsoll::cuda {

// Squares of 2 x 2 pixels of dx read 2 x 2 pixels of dy and share all taps: of two neighbours, one is read by the two
// outer taps, and the other by the middle one. Which is first depends on the pads.
struct GroupedSquares : LineRing {
  static constexpr int stride = 2, tile_squares = 16, tile_pixels = stride * stride * tile_squares, box_units = 8,
                       max_warps = 10, max_threads = 32 * (max_warps + 1), tiles_in_memory = 2;

  int units, groups, joined;  // units of 8 channels of a group
  // Warps of a block: each has a few groups, and those that have others of the same tile are `parts`.
  int block_groups, parts, pixel_warps;
  int out[2], squares[2];
  bool middle_first;
  int columns, rows;              // squares of a tile
  int tiles_across, tiles_image;  // tiles of an image's squares
  int channel_blocks, splits, tiles, block_tiles;
  QuickDivisor of_image, of_row;

  explicit GroupedSquares(const ConvolutionSizes& c) : GroupedSquares(JoinedGroups(c)) {}
  explicit GroupedSquares(const JoinedGroups& of)
      : units(of.sizes.x_channels / unit_channels),
        groups(of.sizes.groups),
        joined(of.count),
        middle_first(of.sizes.pad[0] == 1) {
    const ConvolutionSizes& c = of.sizes;
    block_groups = groups_of_block();
    parts = block_groups / warp_groups(units);
    pixel_warps = max_warps / parts;
    for (int d = 0; d < 2; ++d) {
      in[d] = c.y[d];
      out[d] = c.x[d];
      squares[d] = static_cast<int>(divide_up(out[d], stride));
      pad[d] = c.pad[d] == 0 ? 1 : 0;
    }
    set_lines(squares[0] + 1, squares[1] + 1, odd_units(block_units()));
    set_stages(std::min<int64_t>(100 << 10, max_shared_bytes - staged_bytes()));
    choose_tile();
    tiles = static_cast<int>(c.batch * tiles_image);
    of_image = QuickDivisor(tiles_image);
    of_row = QuickDivisor(tiles_across);
    channel_blocks = static_cast<int>(divide_up(groups, block_groups));
    block_tiles = static_cast<int>(divide_up(tiles, std::max<int64_t>(1, wanted_blocks / channel_blocks)));
    splits = static_cast<int>(divide_up(tiles, block_tiles));
  }

  // Registers hold the weights of so many, and the sums of two pixels of 16 squares.
  static constexpr int warp_groups(int units) { return units == 3 ? 1 : 4 / units; }
  constexpr int block_units() const { return block_groups * units; }
  constexpr int block_channels() const { return block_units() * unit_channels; }
  // Of 16 squares by 16 terms by 8 channels, of a group: two units under each tap, and odd ones two by two.
  constexpr int products() const {
    constexpr int taps = kernel * kernel;
    return units * (units / 2 * taps + units % 2 * ((taps + 1) / 2));
  }
  constexpr int warps() const { return parts * pixel_warps; }
  constexpr int threads() const { return 32 * (warps() + 1); }
  // A tile's pixels lie in boxes of 64 channels on their way to memory, or in one box of an odd number of units.
  constexpr bool has_odd_boxes() const { return block_units() % 2 != 0; }
  constexpr int boxes() const { return has_odd_boxes() ? 1 : block_units() / box_units; }
  constexpr int tile_bytes() const { return tile_pixels * block_units() * 16; }
  constexpr int64_t staged_bytes() const { return int64_t{tiles_in_memory} * pixel_warps * tile_bytes(); }
  // The weights of a block wait there before anything else does.
  constexpr int weight_row_bytes() const { return kernel * kernel * units * unit_channels / joined * 2; }
  int64_t shared_bytes() const {
    return std::max(staged_bytes() + ring_bytes(), int64_t{block_channels()} * weight_row_bytes());
  }
  int64_t blocks() const { return int64_t{splits} * channel_blocks; }
  // Lines that a tile reads, whole stages of them.
  int64_t lines_of_tile() const { return rows + 1 + 2 * (stage_lines - 1); }

 private:
  // 64 channels; of groups of 24 all where these are few, or else 192. Rows of 72 channels would share sectors of 32
  // bytes with those of other blocks, each of which writes a part.
  int groups_of_block() const {
    constexpr int most = 9;
    if (units < 3) return box_units / units;
    if (groups > most || groups == box_units) return box_units;
    return groups / 2 * 2 + 1;
  }
  // Wide ones are read without conflicts; narrower ones fit small images.
  void choose_tile() {
    constexpr double worth = 0.8;
    tiles_image = 0;
    for (int across : {16, 8, 4}) {
      const int down = tile_squares / across;
      const auto in_row = static_cast<int>(divide_up(squares[1], across));
      const auto count = static_cast<int>(in_row * divide_up(squares[0], down));
      if (tiles_image > 0 && count > worth * tiles_image) continue;
      columns = across, rows = down, tiles_across = in_row, tiles_image = count;
    }
  }
};

// A tile's first square, its image, and the first line that it reads, counted from a block's first one.
struct SquarePlace {
  int image, row, column, line;

  constexpr SquarePlace(const GroupedSquares& p, int tile, int first_line) {
    image = p.of_image.quotient(tile);
    const int in_image = tile - image * p.tiles_image, tile_row = p.of_row.quotient(in_image);
    row = tile_row * p.rows;
    column = (in_image - tile_row * p.tiles_across) * p.columns;
    line = image * p.image_lines + row - first_line;
  }
};

// What a block has to do; lines are counted from its first one.
struct SquareBlock {
  int first_group, channel, first_tile, end_tile, first_line, last_line;

  constexpr SquareBlock(const GroupedSquares& p, int block) {
    const int of_channels = block % p.channel_blocks;
    first_group = of_channels * p.block_groups;
    channel = of_channels * p.block_channels();
    first_tile = block / p.channel_blocks * p.block_tiles;
    end_tile = std::min(first_tile + p.block_tiles, p.tiles);
    first_line = SquarePlace(p, first_tile, 0).line;
    last_line = SquarePlace(p, end_tile - 1, first_line).line + p.rows;
  }
};

// 16-bit floats in groups of as many channels of both images, up to 24, or of few that are joined; pads in front that
// are both odd or both even.
inline bool fits_grouped_squares(const ConvolutionSizes& of_tensors) {
  const JoinedGroups joined(of_tensors);
  if (!fits_line_rings(joined, LineRing::max_output_units) || joined.sizes.stride[0] != GroupedSquares::stride)
    return false;
  if (joined.sizes.pad[0] % 2 != joined.sizes.pad[1] % 2) return false;
  const GroupedSquares p(joined);
  return p.line_pixels <= LineRing::max_box && p.lines >= p.lines_of_tile();
}

}  // namespace plimsoll::cuda
