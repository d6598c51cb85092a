#pragma once

// Tiles of warpgroup.cuh made of boxes of 16 columns, of which any number makes a tile: a row of a box has 32 bytes,
// and its 16-byte word w stands at place w ^ (row / 4 % 2). Products have as many columns as a tile.

#include "kernels/cuda/common/warpgroup.cuh"

namespace plimsoll::cuda {

inline constexpr int narrow_box = 16;

// What the matrix units need to know of a matrix that begins here, in a tile of `rows` rows. As a transposed operand it
// goes on in the next boxes.
template <int rows>
__device__ uint64_t narrow_matrix(const void* first) {
  constexpr uint64_t box = rows * narrow_box * 2 >> 4, eight_rows = 256 >> 4, swizzles_32_bytes = 3;
  return (shared_address(first) & 0x3ffff) >> 4 | box << 16 | eight_rows << 32 | swizzles_32_bytes << 62;
}

#define PLIMSOLL_TILE(t) "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
#define PLIMSOLL_4_TILES(t) PLIMSOLL_TILE(t), PLIMSOLL_TILE(t + 1), PLIMSOLL_TILE(t + 2), PLIMSOLL_TILE(t + 3)
#define PLIMSOLL_24_SUMS \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define PLIMSOLL_40_SUMS \
  PLIMSOLL_24_SUMS ", %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
#define PLIMSOLL_48_SUMS PLIMSOLL_40_SUMS ", %40, %41, %42, %43, %44, %45, %46, %47"
#define PLIMSOLL_REGISTER_PRODUCT(type, width, sums, operands, ...)                                                  \
  asm volatile(                                                                                                      \
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                                     \
      "wgmma.mma_async.sync.aligned.m64n" width "k16.f32." type "." type " {" sums "}, " operands ", p, 1, 1, 1;\n}" \
      : __VA_ARGS__                                                                                                  \
      : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "l"(right))
#define PLIMSOLL_80_COLUMNS(type)                                                                           \
  PLIMSOLL_REGISTER_PRODUCT(type, "80", PLIMSOLL_40_SUMS, "{%40, %41, %42, %43}, %44", PLIMSOLL_4_TILES(0), \
                            PLIMSOLL_4_TILES(4), PLIMSOLL_TILE(8), PLIMSOLL_TILE(9))
#define PLIMSOLL_96_COLUMNS(type)                                                                           \
  PLIMSOLL_REGISTER_PRODUCT(type, "96", PLIMSOLL_48_SUMS, "{%48, %49, %50, %51}, %52", PLIMSOLL_4_TILES(0), \
                            PLIMSOLL_4_TILES(4), PLIMSOLL_4_TILES(8))
#define PLIMSOLL_48_COLUMNS_TRANSPOSED(type)                                            \
  asm volatile(                                                                         \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"                                      \
      "wgmma.mma_async.sync.aligned.m64n48k16.f32." type "." type " {" PLIMSOLL_24_SUMS \
      "}, %24, %25, p, 1, 1, 1, 1;\n}"                                                  \
      : PLIMSOLL_4_TILES(0), PLIMSOLL_TILE(4), PLIMSOLL_TILE(5)                         \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)))

// sum += left * right, right being [16, 8 * tiles] in boxes of 16 columns in shared memory.
template <typename T, int tiles>
__device__ void start_wide_product(float (&sum)[tiles][4], const LeftFragment& left, uint64_t right) {
  constexpr bool is_bf16 = std::is_same_v<T, bf16>;
  static_assert(tiles == 10 || tiles == 12);
  if constexpr (tiles == 10 && is_bf16)
    PLIMSOLL_80_COLUMNS("bf16");
  else if constexpr (tiles == 10)
    PLIMSOLL_80_COLUMNS("f16");
  else if constexpr (is_bf16)
    PLIMSOLL_96_COLUMNS("bf16");
  else
    PLIMSOLL_96_COLUMNS("f16");
}
// sum (+)= left^T * right, left being [16, 64], and right [16, 48] in boxes of 16 columns, in shared memory.
template <typename T>
__device__ void start_transposed_wide_product(float (&sum)[6][4], uint64_t left, uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_48_COLUMNS_TRANSPOSED("bf16");
  else
    PLIMSOLL_48_COLUMNS_TRANSPOSED("f16");
}

#undef PLIMSOLL_48_COLUMNS_TRANSPOSED
#undef PLIMSOLL_96_COLUMNS
#undef PLIMSOLL_80_COLUMNS
#undef PLIMSOLL_REGISTER_PRODUCT
#undef PLIMSOLL_48_SUMS
#undef PLIMSOLL_40_SUMS
#undef PLIMSOLL_24_SUMS
#undef PLIMSOLL_4_TILES
#undef PLIMSOLL_TILE

}  // namespace plimsoll::cuda
