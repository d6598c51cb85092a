#include "kernels/cpu/attention/block_matmul.h"

#include "kernels/cpu/common/vectorised.h"

#include <algorithm>
#include <cstring>

// The middle of the product is a tile of 6 x 16 results in registers, to which each step of the depth adds an
// outer product (Goto and van de Geijn 2008, without the packing: everything is in cache already).

namespace plimsoll::cpu {

namespace {

constexpr int64_t tile_rows = 6, lanes = 8;
typedef float Vector __attribute__((vector_size(lanes * sizeof(float))));

template <int Rows, int Vectors>
PLIMSOLL_INLINE void add_tile(float* c, int64_t c_step, LeftBlock a, const float* b, int64_t b_step, int64_t depth) {
  Vector sum[Rows][Vectors];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) std::memcpy(&sum[r][v], c + r * c_step + v * lanes, sizeof(Vector));
  for (int64_t k = 0; k < depth; ++k) {
    Vector right[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) std::memcpy(&right[v], b + k * b_step + v * lanes, sizeof(Vector));
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const float left = a.data[r * a.row_step + k * a.depth_step];
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) std::memcpy(c + r * c_step + v * lanes, &sum[r][v], sizeof(Vector));
}

template <int Rows>
PLIMSOLL_INLINE void add_rows(float* c, int64_t c_step, LeftBlock a, const float* b, int64_t b_step, int64_t columns,
                              int64_t depth) {
  int64_t j = 0;
  for (; j + 2 * lanes <= columns; j += 2 * lanes) add_tile<Rows, 2>(c + j, c_step, a, b + j, b_step, depth);
  for (; j + lanes <= columns; j += lanes) add_tile<Rows, 1>(c + j, c_step, a, b + j, b_step, depth);
  for (; j < columns; ++j)
    for (int r = 0; r < Rows; ++r) {
      float sum = c[r * c_step + j];
      for (int64_t k = 0; k < depth; ++k) sum += a.data[r * a.row_step + k * a.depth_step] * b[k * b_step + j];
      c[r * c_step + j] = sum;
    }
}

}  // namespace

PLIMSOLL_VECTORISED void add_block_matmul(float* c, int64_t c_step, LeftBlock a, const float* b, int64_t b_step,
                                          int64_t rows, int64_t columns, int64_t depth) {
  int64_t r = 0;
  for (; r + tile_rows <= rows; r += tile_rows) {
    const LeftBlock strip{a.data + r * a.row_step, a.row_step, a.depth_step};
    add_rows<tile_rows>(c + r * c_step, c_step, strip, b, b_step, columns, depth);
  }
  for (; r < rows; ++r) {
    const LeftBlock strip{a.data + r * a.row_step, a.row_step, a.depth_step};
    add_rows<1>(c + r * c_step, c_step, strip, b, b_step, columns, depth);
  }
}

void transpose_block(float* to, int64_t to_step, const float* from, int64_t from_step, int64_t rows, int64_t columns) {
  constexpr int64_t tile = 16;
  for (int64_t j0 = 0; j0 < columns; j0 += tile)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = j0; j < std::min(columns, j0 + tile); ++j) to[j * to_step + i] = from[i * from_step + j];
}

}  // namespace plimsoll::cpu
