#pragma once

// Which heads are so short that a block makes the gradient of attention of a whole one, without CUDA: planning asks.

#include <cstdint>

namespace plimsoll::cuda {

// So many rows and columns, of up to so many elements: k and v of two heads fit shared memory beside tiles of q and dy.
// Up to 64 of both are one tile; longer heads have at least two tiles of rows.
inline constexpr int64_t max_whole_head_rows = 256, max_whole_head_columns = 208, max_whole_head_depth = 64;
inline constexpr int max_short_rows = 64;

constexpr bool are_short_heads(int64_t rows, int64_t columns) {
  return rows <= max_short_rows && columns <= max_short_rows;
}
constexpr bool fits_whole_heads(int64_t rows, int64_t columns, int64_t depth) {
  const bool is_long = rows > max_short_rows && rows <= max_whole_head_rows && columns <= max_whole_head_columns;
  return rows > 0 && columns > 0 && (is_long || are_short_heads(rows, columns)) && depth > 0 &&
         depth <= max_whole_head_depth && depth % 8 == 0;
}

// Longer heads of up to so many columns leave room for two blocks on a multiprocessor.
inline constexpr int64_t max_paired_columns = 96;

}  // namespace plimsoll::cuda
