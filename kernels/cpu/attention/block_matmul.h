#pragma once

// Small matmuls for kernels that work block by block in cache, where a library call would cost more
// than the matmul.

#include <cstdint>

namespace plimsoll::cpu {

// a(r, k) = a[r * row_step + k * depth_step]: a block or its transpose.
struct LeftBlock {
  const float* data;
  int64_t row_step, depth_step;
};

// c[r, j] += sum_k a(r, k) b[k, j], c and b with rows of `c_step` and `b_step` floats.
void add_block_matmul(float* c, int64_t c_step, LeftBlock a, const float* b, int64_t b_step, int64_t rows,
                      int64_t columns, int64_t depth);

// to[j, i] = from[i, j], both blocks of larger matrices.
void transpose_block(float* to, int64_t to_step, const float* from, int64_t from_step, int64_t rows, int64_t columns);

}  // namespace plimsoll::cpu
