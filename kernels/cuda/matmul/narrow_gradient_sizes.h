#pragma once

// How the product behind a narrow weight's gradient divides its work. No CUDA here: plans are made where there is none.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

// wide [rows, columns] and few [rows, few_columns], 16-bit floats. Blocks sum `block_columns` columns over a part of
// the rows, a tile of rows at a time; the parts are added up behind them.
struct NarrowGradientSizes {
  static constexpr int block_columns = 128, tile_rows = 64;
  static constexpr int unit = 8;                 // elements of a 16-byte access
  static constexpr int most_few_columns = 64;    // sums that a thread holds in registers: half as many
  static constexpr int64_t wanted_blocks = 264;  // two a multiprocessor of an H200

  int64_t rows, columns, few_columns;

  constexpr int64_t column_blocks() const { return divide_up(columns, block_columns); }
  constexpr int64_t tiles() const { return divide_up(rows, tile_rows); }
  constexpr int64_t tiles_of_part() const {
    return divide_up(tiles(), std::clamp<int64_t>(wanted_blocks / column_blocks(), 1, tiles()));
  }
  constexpr int64_t parts() const { return divide_up(tiles(), tiles_of_part()); }
  constexpr int64_t weights() const { return columns * few_columns; }
  constexpr int64_t workspace_bytes() const { return parts() * weights() * 4; }

  // Whole accesses, and counts that 32 bits hold.
  constexpr bool fit() const {
    constexpr int64_t most = int64_t{1} << 30;
    return rows > 0 && columns > 0 && few_columns > 0 && columns % unit == 0 && few_columns % unit == 0 &&
           few_columns <= most_few_columns && few_columns <= columns && rows < most && columns < most;
  }
};

}  // namespace plimsoll::cuda
