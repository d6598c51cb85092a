#pragma once

// How products with one matrix at the left of each of a batch divide their work. No CUDA here: plans are made where
// there is none.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

// y[b] = w x[b] with x [batch, depth, columns] and y [batch, rows, columns]. A block keeps the rows of w that make
// `tile_rows` rows of y in shared memory, and makes tiles of 128 columns of these, one after the other.
struct LeftProductTiles {
  static constexpr int64_t tile_columns = 128, step = 64;  // of the depth
  static constexpr int64_t shared_bytes = 226 << 10, min_stages = 2, max_stages = 8;
  static constexpr int64_t max_size = 512;  // of rows and of the depth, as far as was timed

  int64_t batch, rows, depth, columns;
  int64_t tile_rows;

  constexpr int64_t down() const { return divide_up(rows, tile_rows); }
  constexpr int64_t across() const { return divide_up(columns, tile_columns); }
  constexpr int64_t steps() const { return divide_up(depth, step); }
  // Bytes of shared memory: the matrix, what a stage of x has, and what is staged of y.
  constexpr int64_t matrix_bytes() const { return steps() * step * tile_rows * 2; }
  static constexpr int64_t stage_bytes() { return step * tile_columns * 2; }
  constexpr int64_t staged_bytes() const { return tile_rows * tile_columns * 2; }
  constexpr int64_t stages() const {
    return std::min(max_stages, (shared_bytes - matrix_bytes() - staged_bytes()) / (stage_bytes() + 16));
  }
};

// The largest tile of rows that leaves room for stages, or of all such that need no more tiles the smallest.
inline LeftProductTiles choose_left_product_tiles(int64_t batch, int64_t rows, int64_t depth, int64_t columns) {
  LeftProductTiles best{batch, rows, depth, columns, 0};
  for (const int64_t tile_rows : {200, 192, 128, 96}) {
    LeftProductTiles tiles{batch, rows, depth, columns, tile_rows};
    if (tiles.stages() < LeftProductTiles::min_stages) continue;
    if (best.tile_rows == 0 || tiles.down() <= best.down()) best = tiles;
  }
  return best;
}

// dw = sum over b of dy[b] x[b]^T with dy [batch, rows, columns] and x [batch, depth, columns], and the sums of the
// rows of dy. A block makes a tile of dw from one of `parts` equal parts of the steps, each of 64 columns of one matrix
// of the batch. A tile of x has a row less than there is room for, which is ones: the column of products with it has
// the sums of the rows of dy.
struct LeftGradientTiles {
  static constexpr int64_t tile_rows = 128, tile_depth = 200, step = 64;  // of columns

  int64_t batch, rows, depth, columns;
  int64_t parts;

  constexpr int64_t down() const { return divide_up(rows, tile_rows); }
  constexpr int64_t across() const { return divide_up(depth + 1, tile_depth); }
  constexpr int64_t tiles() const { return down() * across(); }
  // Rows of x that a tile has.
  constexpr int64_t used_depth() const { return divide_up(depth, across()); }
  constexpr int64_t row_steps() const { return divide_up(columns, step); }
  constexpr int64_t steps() const { return batch * row_steps(); }
  constexpr int64_t blocks() const { return tiles() * parts; }
  // Floats of workspace: a tile of each block.
  constexpr int64_t workspace() const { return blocks() * tile_rows * tile_depth; }
};

inline LeftGradientTiles choose_left_gradient_tiles(int64_t batch, int64_t rows, int64_t depth, int64_t columns,
                                                    int64_t multiprocessors, int64_t max_workspace) {
  LeftGradientTiles tiles{batch, rows, depth, columns, 1};
  const int64_t most = std::min(multiprocessors / tiles.tiles(), max_workspace / tiles.workspace());
  tiles.parts = std::clamp<int64_t>(most, 1, std::max<int64_t>(tiles.steps(), 1));
  return tiles;
}

}  // namespace plimsoll::cuda
