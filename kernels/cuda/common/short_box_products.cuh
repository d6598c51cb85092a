#pragma once

// Products of a warpgroup with tiles of short rows, as boxes of short_boxes.cuh have them: 64 bytes a row. A tile
// begins at a border of 512 bytes.

#include "kernels/cuda/common/warpgroup.cuh"

namespace plimsoll::cuda {

inline constexpr int short_row = 32;  // elements

// What the matrix units need to know of short rows that begin here. 16 elements of a row further are two units of it,
// 16 rows further 64.
__device__ inline uint64_t short_matrix(const void* first) {
  constexpr uint64_t eight_rows = 512 >> 4, swizzles_64_bytes = 2;
  return (shared_address(first) & 0x3ffff) >> 4 | eight_rows << 32 | swizzles_64_bytes << 62;
}

#define PLIMSOLL_TILE(t) "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
#define PLIMSOLL_4_TILES PLIMSOLL_TILE(0), PLIMSOLL_TILE(1), PLIMSOLL_TILE(2), PLIMSOLL_TILE(3)
#define PLIMSOLL_16_SUMS "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define PLIMSOLL_56_COLUMNS(type)                                                                  \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %30, 0;\n"                                                 \
      "wgmma.mma_async.sync.aligned.m64n56k16.f32." type "." type " {" PLIMSOLL_16_SUMS            \
      ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27}, %28, %29, p, 1, 1, 0, 0;\n}" \
      : PLIMSOLL_4_TILES, PLIMSOLL_TILE(4), PLIMSOLL_TILE(5), PLIMSOLL_TILE(6)                     \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)))
#define PLIMSOLL_REGISTER_PRODUCT(type)                                                 \
  asm volatile(                                                                         \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"                                      \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {" PLIMSOLL_16_SUMS \
      "}, {%16, %17, %18, %19}, %20, p, 1, 1, 1;\n}"                                    \
      : PLIMSOLL_4_TILES                                                                \
      : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "l"(right), "r"(static_cast<int>(adds)))

// sum (+)= left * right^T, left being [64, 16] and right [8 * tiles, 16] in shared memory.
template <typename T, int tiles>
__device__ void start_product_of_rows(float (*sum)[4], uint64_t left, uint64_t right, bool adds) {
  static_assert(tiles == 7 || tiles == 8, "56 or 64 columns");
  if constexpr (tiles == 8)
    start_product<T>(sum, left, right, adds);
  else if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_56_COLUMNS("bf16");
  else
    PLIMSOLL_56_COLUMNS("f16");
}
// sum (+)= left * right, right being [16, 32] in shared memory; sum is 4 tiles of 64 x 8.
template <typename T>
__device__ void start_narrow_product(float (*sum)[4], const LeftFragment& left, uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_REGISTER_PRODUCT("bf16");
  else
    PLIMSOLL_REGISTER_PRODUCT("f16");
}

#define PLIMSOLL_16_COLUMNS(type, transposes)                                  \
  asm volatile(                                                                \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"                             \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type              \
      " {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, " transposes ";\n}" \
      : PLIMSOLL_TILE(0), PLIMSOLL_TILE(1)                                     \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)))

// sum (+)= left^T * right, left being [16, 64] in a tile of 128 bytes a row, and right [16, 16] in shared memory; sum
// is 2 tiles of 64 x 8.
template <typename T>
__device__ void start_half_transposed_product(float (*sum)[4], uint64_t left, uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_16_COLUMNS("bf16", "1, 1");
  else
    PLIMSOLL_16_COLUMNS("f16", "1, 1");
}
// The same, left being [64, 16].
template <typename T>
__device__ void start_half_rows_product(float (*sum)[4], uint64_t left, uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_16_COLUMNS("bf16", "0, 1");
  else
    PLIMSOLL_16_COLUMNS("f16", "0, 1");
}

#undef PLIMSOLL_16_COLUMNS
#undef PLIMSOLL_REGISTER_PRODUCT
#undef PLIMSOLL_56_COLUMNS
#undef PLIMSOLL_16_SUMS
#undef PLIMSOLL_4_TILES
#undef PLIMSOLL_TILE

}  // namespace plimsoll::cuda
