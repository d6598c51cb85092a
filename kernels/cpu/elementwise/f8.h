#pragma once

// 8-bit floats with one scale for a whole tensor, or for each row, block or tile of it.

#include "kernels/scalar.h"

#include <cstdint>

namespace plimsoll::cpu {

// The smallest power of two, from 2^-126 on, that brings the n numbers within codes of that type when they are divided
// by it; 1 where all are zero, NaN where one is not finite.
float f8_scale(const float* x, int64_t n, Scalar codes);

// Codes of x [rows, columns] over the scale, a power of two: as x lies, and its transpose. Either may be null.
void to_f8(const float* x, int64_t rows, int64_t columns, float scale, Scalar type, uint8_t* codes, uint8_t* turned);

// The number at [row, column] of a matrix has the scale of index
// row / block_rows * row_step + column / block_columns * column_step. A row of a block has 1 number, a multiple of 128,
// or all of the row.
struct ScaleGrid {
  int64_t block_rows, block_columns, row_step, column_step;
};

enum class Layout : uint8_t { AsIs, Turned };

// `count` scales of x [rows, columns], each as f8_scale has it (1 where no number has it), and codes over them as x
// lies or as its transpose. The grid is of x as it lies.
void to_scaled_f8(const float* x, int64_t rows, int64_t columns, const ScaleGrid& grid, Scalar type, float* scales,
                  int64_t count, uint8_t* codes, Layout layout);

// y = values[code] * scale
void from_f8(const uint8_t* codes, int64_t rows, int64_t columns, const float* values, const float* scales,
             const ScaleGrid& grid, float* y);

}  // namespace plimsoll::cpu
