#pragma once

// How resize's gradient is dealt out to blocks: which elements of dx a block makes, and how many threads go down the
// rows of dy beside each other.

#include "kernels/cuda/resize/resize_taps.cuh"

#include <algorithm>
#include <cmath>

namespace plimsoll::cuda {

inline constexpr int columns_per_thread = 8, block_columns = columns_per_thread * resize_threads;
inline constexpr int64_t max_positions = 2048, max_lines = 32;
inline constexpr int64_t enough_blocks = 132 * 4, max_blocks = 1 << 20, min_rows_per_part = 4;

// The work of a block: `lines` lines of a plane, which is what stands around the lines' axis; in them `positions` of
// the last axis, and of what stands inside of each `channels`.
struct GradTiles {
  int64_t channels, positions, lines, planes;  // planes: of dx
  int64_t channel_tiles, position_tiles, line_tiles, plane_tiles;
  int64_t max_ks;  // elements of dy's last axis that the columns hold
  int width;       // elements of an access
  int across;      // threads for the columns of a row; the others of a block have other planes,
  int row_parts;   // or, where these are several, other rows

  __host__ __device__ int64_t blocks() const { return channel_tiles * position_tiles * line_tiles * plane_tiles; }
};

// Elements of dy's last axis that give to so many elements of x in a row, at most: those that lie among them and, up to
// the taps' reach, around them; at the edges, all that lie beyond.
inline int64_t readers_of(const ResizedAxis& axis, int taps, int64_t positions) {
  if (positions >= axis.in || axis.factor == 0) return axis.out;
  const double apart = axis.factor / axis.divisor, start = axis.offset + axis.shift * apart - axis.back;
  const double before = -start,
               behind = start + static_cast<double>(axis.out - 1) * apart - static_cast<double>(axis.in - 1);
  const double around = std::max({static_cast<double>(taps - 1), before + 1, behind + 1});
  const double readers = std::ceil((static_cast<double>(positions) + around) / apart) + 2;
  return readers < static_cast<double>(axis.out) ? static_cast<int64_t>(readers) : axis.out;
}

// The most elements of x whose readers are no more than `ks`; 0 where those of one are.
inline int64_t positions_read_by(const ResizedAxis& axis, int taps, int64_t ks) {
  int64_t low = 0, high = std::min(axis.in, max_positions);
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    (readers_of(axis, taps, middle) <= ks ? low : high) = readers_of(axis, taps, middle) <= ks ? middle : middle - 1;
  }
  return low;
}

// Blocks of a tile's columns: threads of a row, and what the other threads do.
inline void arrange_threads(const ResizeShape& shape, GradTiles& tiles, int64_t columns, int64_t rows_per_line) {
  tiles.across = 4;
  while (tiles.across < resize_threads && tiles.across * columns_per_thread < columns) tiles.across *= 2;
  tiles.row_parts = 1;
  tiles.plane_tiles = divide_up(tiles.planes, resize_threads / tiles.across);
  const auto cut_lines = [&](int64_t lines) {
    tiles.lines = lines;
    tiles.line_tiles = divide_up(shape.axes[1].in, lines);
  };
  const bool in_pieces = columns > block_columns;
  cut_lines(in_pieces ? 1 : std::min(shape.axes[1].in, max_lines));
  while (tiles.lines > 1 && tiles.blocks() < enough_blocks) cut_lines((tiles.lines + 1) / 2);
  const int across = std::max(tiles.across, warp_threads), parts = resize_threads / across;
  if (tiles.lines > 1 || tiles.blocks() >= enough_blocks || parts == 1 || rows_per_line < min_rows_per_part * parts)
    return;
  tiles.across = across;
  tiles.row_parts = parts;
  tiles.plane_tiles = tiles.planes;
}

// Tiles of so many channels.
inline GradTiles tiles_of(const ResizeShape& shape, int taps, int vector, int64_t channels) {
  const ResizedAxis& axis = shape.axes[2];
  const int64_t inner = shape.inner[2];
  GradTiles tiles{.channels = channels, .planes = shape.outer * shape.inner[0] * shape.inner[1] * shape.axes[0].in};
  tiles.channel_tiles = divide_up(inner, channels);
  tiles.width = inner % vector == 0 || (channels == inner && axis.out * inner % vector == 0) ? vector : 1;
  const bool whole_lines = axis.out * channels <= block_columns && axis.in <= max_positions;
  const int64_t max_skipped = whole_lines || inner % tiles.width == 0 ? 0 : tiles.width - 1;
  tiles.max_ks = std::max<int64_t>((block_columns - max_skipped) / channels, 1);
  tiles.position_tiles = divide_up(axis.in, std::max<int64_t>(positions_read_by(axis, taps, tiles.max_ks), 1));
  tiles.positions = divide_up(axis.in, tiles.position_tiles);
  const int64_t rows_per_line = readers_of(shape.axes[0], taps, 1) * readers_of(shape.axes[1], taps, 1);
  arrange_threads(shape, tiles, readers_of(axis, taps, tiles.positions) * channels + max_skipped, rows_per_line);
  return tiles;
}

// As many channels as leave a tile several positions, a row of dy being read again for each tile beside it, or as few
// as make blocks enough. Channels that are read together stay so down to a sector of memory or two.
inline GradTiles best_tiles(const ResizeShape& shape, int taps, int vector) {
  const int64_t unit = shape.inner[2] % vector == 0 ? vector : 1;
  GradTiles tiles = tiles_of(shape, taps, vector, shape.inner[2]);
  while (tiles.channels > unit) {
    const bool in_pieces = readers_of(shape.axes[2], taps, tiles.positions) > tiles.max_ks;
    const bool narrow = tiles.positions < std::min<int64_t>(shape.axes[2].in, 4) && tiles.channels > 4 * vector;
    const bool few = unit > 1 && tiles.blocks() < enough_blocks / 2 && tiles.channels > 2 * vector;
    if (!in_pieces && !narrow && !few) break;
    tiles = tiles_of(shape, taps, vector, divide_up(divide_up(tiles.channels, 2), unit) * unit);
  }
  return tiles;
}

}  // namespace plimsoll::cuda
