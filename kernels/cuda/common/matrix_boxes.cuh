#pragma once

// Boxes of matrices of 2 or 4 bytes an element, for the copy engine.

#include "kernels/cuda/common/box_copy.cuh"

namespace plimsoll::cuda {

inline constexpr int box_bytes = 128;  // of a row

// Matrices [batch, heads, rows, columns] of elements of so many `bytes`, whose rows are `pitch` elements apart: boxes
// have box_bytes of `box_rows` rows of one matrix. Their first column is counted in units of 2 bytes.
[[nodiscard]] cudaError_t map_matrices(CUtensorMap& map, const void* first, int64_t batch, int64_t heads, int64_t rows,
                                       int64_t columns, int64_t pitch, int64_t bytes, int box_rows);

}  // namespace plimsoll::cuda
