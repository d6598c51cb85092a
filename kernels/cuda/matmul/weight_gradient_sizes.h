#pragma once

// How weight gradients on Hopper's warpgroups divide their work. No CUDA here: plans are made where there is none.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace plimsoll::cuda {

// dw [rows, columns] = left^T right, with left [depth, rows] and right [depth, columns]. One of them is dy, whose
// columns are summed for dbias.
struct WeightGradientSizes {
  int64_t rows, columns, depth;
  bool left_is_dy;

  constexpr int64_t bias_elements() const { return left_is_dy ? rows : columns; }
};

// A block makes a tile of dw from one of `parts` equal parts of the depth. Where there are several parts, their sums go
// through the workspace. Of dy's columns every block sums a share of the rows that it loads anyway: blocks with the
// same columns of dy take the steps by turns.
struct WeightGradientTiles {
  static constexpr int64_t step = 64;  // rows of the depth that a block loads at once

  WeightGradientSizes sizes;
  int64_t tile_rows, tile_columns, parts;

  constexpr int64_t down() const { return divide_up(sizes.rows, tile_rows); }
  constexpr int64_t across() const { return divide_up(sizes.columns, tile_columns); }
  constexpr int64_t tiles() const { return down() * across(); }
  constexpr int64_t steps() const { return divide_up(sizes.depth, step); }
  constexpr int64_t block_steps() const { return divide_up(steps(), parts); }
  constexpr int64_t blocks() const { return tiles() * parts; }
  constexpr int64_t tile_elements() const { return tile_rows * tile_columns; }
  // Blocks with the same columns of dy in one part, and the sums of these columns in all parts.
  constexpr int64_t bias_shares() const { return sizes.left_is_dy ? across() : down(); }
  constexpr int64_t bias_partials() const { return parts * bias_shares(); }

  // Floats of workspace: partial tiles, and behind them partial sums of the bias.
  constexpr int64_t partial_elements() const { return parts > 1 ? blocks() * tile_elements() : 0; }
  constexpr int64_t workspace() const { return partial_elements() + bias_partials() * sizes.bias_elements(); }

  // Time in clocks of a multiprocessor; numbers are of an H100, and of memory of an H200. A block takes a while until
  // its first tiles arrive, and stores 20 bytes a clock. A step takes as long as its products or what it loads, which
  // comes from the second-level cache where several tiles need it, and no less than the barriers of its stage and the
  // sums of dy do; all steps take as long as memory. The second launch reads 1,765 bytes a clock.
  constexpr int64_t clocks(int64_t multiprocessors) const {
    constexpr int64_t products_per_clock = 2048, begin = 4400, least_step = 1000, second_launch = 2500;
    constexpr int64_t cache_bytes_per_clock = 48, memory_bytes_per_clock = 18, element_bytes = 2;
    const int64_t bytes = tile_elements() * static_cast<int64_t>(sizeof(float));
    const int64_t loaded = (across() * sizes.rows + down() * sizes.columns) * step * element_bytes / tiles();
    const int64_t of_step =
        std::max({step * tile_elements() / products_per_clock, loaded / cache_bytes_per_clock, least_step});
    const int64_t of_memory =
        sizes.depth * (sizes.rows + sizes.columns) * element_bytes / (memory_bytes_per_clock * multiprocessors);
    const int64_t waves = divide_up(blocks(), multiprocessors);
    return waves * (begin + bytes / 20) + std::max(waves * block_steps() * of_step, of_memory) +
           (parts > 1 ? second_launch + blocks() * bytes / 1765 : 0);
  }
};

// The quickest of four tiles and of as many parts as fill the multiprocessors once, twice or more often, within so many
// floats of workspace.
inline WeightGradientTiles choose_weight_gradient_tiles(const WeightGradientSizes& sizes, int64_t multiprocessors,
                                                        int64_t max_workspace) {
  constexpr int64_t max_waves = 4;
  WeightGradientTiles best{sizes, 192, 192, 1};
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{192, 192}, {128, 256}, {128, 192}, {128, 96}})
    for (int64_t waves = 0; waves <= max_waves; ++waves) {
      WeightGradientTiles tiles{sizes, rows, columns, 1};
      tiles.parts = std::clamp<int64_t>(waves * multiprocessors / tiles.tiles(), 1, tiles.steps());
      if (tiles.workspace() <= max_workspace && tiles.clocks(multiprocessors) < best.clocks(multiprocessors))
        best = tiles;
    }
  return best;
}

}  // namespace plimsoll::cuda
