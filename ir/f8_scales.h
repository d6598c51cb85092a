#pragma once

// Which numbers of a matrix of 8-bit codes share a scale, and where that scale lies. Scales lie as cuBLASLt reads them.

#include "ir/type.h"

#include <optional>

namespace plimsoll {

enum class F8Scales : uint8_t {
  Tensor,  // all numbers share one
  Rows,    // a row: f32[rows]
  Blocks,  // 128 numbers of a row: f32[columns / 128, rows]
  Tiles,   // 128 rows of 128 numbers: f32[rows / 128, columns / 128], with columns of ones up to a multiple of 4
};
inline constexpr llvm::StringLiteral f8_scales_names[] = {"tensor", "rows", "blocks", "tiles"};

// Numbers in a row of a block, and rows of a tile.
inline constexpr int64_t f8_block = 128;

llvm::StringRef f8_scales_name(F8Scales scales);
std::optional<F8Scales> parse_f8_scales(llvm::StringRef name);

// The number at [row, column] has the scale of index
// row / block_rows * row_step + column / block_columns * column_step.
struct F8Grid {
  int64_t block_rows, block_columns, row_step, column_step;

  int64_t index(int64_t row, int64_t column) const {
    return row / block_rows * row_step + column / block_columns * column_step;
  }
  // Of the same numbers where the matrix lies turned.
  F8Grid turned() const { return {block_columns, block_rows, column_step, row_step}; }
};

// Of a matrix [rows, columns]. Blocks need columns that are a multiple of 128, tiles such rows as well.
F8Grid f8_grid(F8Scales scales, int64_t rows, int64_t columns);
Shape f8_scales_shape(F8Scales scales, int64_t rows, int64_t columns);

// What scales of this shape are shared by, for codes [rows, columns]; none where no such scales have it. Shapes differ
// wherever the scales do.
std::optional<F8Scales> f8_scales_of(const Type& scales, int64_t rows, int64_t columns);

}  // namespace plimsoll
