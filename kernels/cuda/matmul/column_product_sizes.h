#pragma once

// How products whose columns are summed on Hopper's warpgroups divide their work. No CUDA here: plans are made where
// there is none.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace plimsoll::cuda {

// y [rows, columns] = left [rows, depth] times right, [depth, columns] or transposed, of 16 bits.
struct ColumnSizes {
  int64_t rows, columns, depth;
};

// A block stays with the columns of a tile and makes every `row_blocks`-th tile of rows there. All of the depth of its
// columns of right may be read once and kept. Tensors of y's shape that sums depend on come in units of 64 rows.
struct ColumnTiling {
  static constexpr int64_t tile_rows = 128, unit_rows = 64, step = 64, element_bytes = 2;
  static constexpr int64_t max_stages = 8, enough_stages = 4, max_units = 4;
  static constexpr int64_t shared_bytes = 227 << 10, border_bytes = 1024, barrier_bytes = 512;

  ColumnSizes sizes;
  int64_t sums;        // of each column, floats
  int64_t beside = 0;  // tensors of y's shape
  int64_t tile_columns = 64, row_blocks = 1;
  bool keeps_right = false;

  constexpr int64_t down() const { return divide_up(sizes.rows, tile_rows); }
  constexpr int64_t across() const { return divide_up(sizes.columns, tile_columns); }
  constexpr int64_t steps() const { return divide_up(sizes.depth, step); }
  constexpr int64_t blocks() const { return across() * row_blocks; }
  constexpr int64_t right_step_bytes() const { return tile_columns * step * element_bytes; }
  constexpr int64_t stage_bytes() const {
    return tile_rows * step * element_bytes + (keeps_right ? 0 : right_step_bytes());
  }
  // Of all tensors, two units of 128 columns or four of 64 on their way.
  constexpr int64_t units() const { return beside == 0 ? 0 : 256 / tile_columns; }
  constexpr int64_t units_bytes() const { return units() * beside * unit_rows * tile_columns * element_bytes; }
  // Beside the ring: what is kept of right, the sums that wait to be finished, units, and barriers.
  constexpr int64_t other_bytes() const {
    return border_bytes + (keeps_right ? steps() * right_step_bytes() : 0) + tile_rows * tile_columns * element_bytes +
           units_bytes() + barrier_bytes;
  }
  constexpr int64_t most_stages() const { return std::min(max_stages, (shared_bytes - other_bytes()) / stage_bytes()); }
  // The steps of a tile, but enough of them; further ones, which let blocks drift apart, took up to 8 % more time.
  constexpr int64_t stages() const { return std::min(most_stages(), std::max(steps(), enough_stages)); }
  constexpr int64_t used_bytes() const { return other_bytes() + stages() * stage_bytes(); }

  // Floats of workspace: the sums of each block's columns.
  constexpr int64_t workspace() const { return sums * row_blocks * sizes.columns; }

  // As many blocks as multiprocessors have one each, and as the workspace has room for the sums of.
  constexpr ColumnTiling with_blocks(int64_t multiprocessors, int64_t max_workspace) const {
    const int64_t room = max_workspace / std::max<int64_t>(sums * sizes.columns, 1);
    ColumnTiling tiling = *this;
    tiling.row_blocks =
        std::clamp<int64_t>(std::min(multiprocessors / across(), room), 1, std::max<int64_t>(down(), 1));
    return tiling;
  }
};

// Count, mean and squares of columns: as many columns a tile as y has, up to 128, or 256 where the depth is so short
// that tiles are mostly written; then right stays where enough stages fit beside it.
inline ColumnTiling choose_moments_tiling(const ColumnSizes& sizes, int64_t multiprocessors, int64_t max_workspace) {
  constexpr int64_t short_depth = 256;
  ColumnTiling tiling{.sizes = sizes, .sums = 3, .tile_columns = sizes.depth <= short_depth ? 256 : 128};
  while (tiling.tile_columns > 64 && tiling.tile_columns / 2 >= sizes.columns) tiling.tile_columns /= 2;
  tiling.keeps_right = true;
  tiling.keeps_right = tiling.most_stages() >= ColumnTiling::enough_stages;
  return tiling.with_blocks(multiprocessors, max_workspace);
}

// Two sums, with so many tensors beside them: 128 columns a tile, or 64, so that right stays beside enough stages.
// Where neither does, of 128 columns.
inline ColumnTiling choose_gradient_tiling(const ColumnSizes& sizes, int64_t beside, int64_t multiprocessors,
                                           int64_t max_workspace) {
  const int64_t widest = sizes.columns <= 64 ? 64 : 128;
  ColumnTiling tiling{.sizes = sizes, .sums = 2, .beside = beside, .keeps_right = true};
  for (int64_t columns : {widest, int64_t{64}}) {
    tiling.tile_columns = columns;
    if (tiling.most_stages() >= ColumnTiling::enough_stages) return tiling.with_blocks(multiprocessors, max_workspace);
  }
  tiling.tile_columns = widest;
  tiling.keeps_right = false;
  return tiling.with_blocks(multiprocessors, max_workspace);
}

}  // namespace plimsoll::cuda
