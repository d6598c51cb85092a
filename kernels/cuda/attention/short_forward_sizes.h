#pragma once

#include "kernels/division.h"

#include <cstdint>

namespace plimsoll::cuda {

// Forward of heads of up to 64 elements: does one block of four computing warpgroups on a multiprocessor, whose tiles
// of 64 rows share k and v, take less time than three blocks of one? Four tiles at a time take this share of the time
// for each, but heads are cut into blocks of four.
inline constexpr double of_shared_columns = 0.85;
constexpr bool shares_columns(int64_t heads, int64_t rows, int64_t multiprocessors) {
  const int64_t tiles = divide_up(rows, 64), ones = divide_up(heads * tiles, 3 * multiprocessors),
                fours = divide_up(heads * divide_up(tiles, 4), multiprocessors);
  return static_cast<double>(4 * fours) * of_shared_columns < static_cast<double>(3 * ones);
}

}  // namespace plimsoll::cuda
