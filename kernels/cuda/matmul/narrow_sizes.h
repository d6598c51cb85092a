#pragma once

// Products of many rows of which one side has few columns: how blocks share the rows. No CUDA here: plans need the
// floats of workspace, and prices the sizes.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

// x [rows, inner] and y, or dy, [rows, columns]. One of the two is narrow; where both are, it is x for a product.
struct NarrowSizes {
  int64_t rows, inner, columns, element_bytes;

  static constexpr int64_t most_narrow = 16, most_wide = 256;
  // Sums over more than 128 elements for each of 16 columns need more registers than a thread has.
  static constexpr int64_t most_wide_sums = 128;
  static constexpr int64_t most_product_blocks = 528;  // four on each of 132 multiprocessors

  constexpr int64_t narrow() const { return std::min(inner, columns); }
  constexpr int64_t wide() const { return std::max(inner, columns); }
  constexpr bool is_narrow() const {
    return rows > 0 && narrow() > 0 && narrow() <= most_narrow && wide() <= most_wide;
  }
  constexpr bool sums_rows() const { return inner > most_narrow; }
  constexpr bool has_product() const {
    return is_narrow() && (!sums_rows() || columns <= most_narrow / 2 || inner <= most_wide_sums);
  }

  // Rows a block holds in shared memory at once, within `bytes` where a row takes row_bytes: multiples of 8, so that
  // each tile begins at a border of 16 bytes, and few enough for blocks on all multiprocessors.
  constexpr int64_t tile_rows(int64_t row_bytes) const {
    constexpr int64_t tile_bytes = 48 << 10, wanted_tiles = 528, step = 8;
    const int64_t fitting = tile_bytes / row_bytes / step * step,
                  useful = round_up(divide_up(rows, wanted_tiles), step);
    return std::max(std::min(fitting, useful), step);
  }
  // Two tiles of x, of which one is on its way, and one of y.
  constexpr int64_t product_tile_bytes_of_row() const { return (2 * inner + columns) * element_bytes; }
  constexpr int64_t product_tile_rows() const { return tile_rows(product_tile_bytes_of_row()); }
  // Two tiles of x and dy each.
  constexpr int64_t gradient_tile_bytes_of_row() const { return 2 * (inner + columns) * element_bytes; }
  constexpr int64_t gradient_tile_rows() const { return tile_rows(gradient_tile_bytes_of_row()); }

  // Blocks of the gradient, each of which sums what its tiles have.
  constexpr int64_t gradient_parts() const {
    constexpr int64_t most_parts = 264;
    return std::clamp<int64_t>(divide_up(rows, gradient_tile_rows()), 1, most_parts);
  }
  // Floats of a part: dw as it is stored, then dbias.
  constexpr int64_t part_floats() const { return inner * columns + columns; }
  constexpr int64_t gradient_workspace() const { return gradient_parts() * part_floats(); }
};

}  // namespace plimsoll::cuda
