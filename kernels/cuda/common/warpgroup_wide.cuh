#pragma once

// Products of a warpgroup with 96, 128, 192 or 256 columns at once: all but a few of a thread's registers are sums.

#include "kernels/cuda/common/warpgroup.cuh"

namespace plimsoll::cuda {

// A matrix of several columns of 64 elements, so many bytes apart.
__device__ inline uint64_t shared_columns(const void* first, int bytes_apart) {
  return shared_matrix(first) | static_cast<uint64_t>(bytes_apart >> 4) << 16;
}

// The same where eight rows and the next ones, and columns of 64 elements and the next ones, are so many units of 16
// bytes apart; rows that both have are read twice. A tile may begin at any row of one that begins at a border.
__device__ inline uint64_t shared_lines(const void* first, uint64_t eight_rows, uint64_t columns_apart) {
  constexpr uint64_t swizzles_128_bytes = 1;
  return (shared_address(first) & 0x3ffff) >> 4 | columns_apart << 16 | eight_rows << 32 | swizzles_128_bytes << 62;
}

#define PLIMSOLL_TEN(d) \
  "%" #d "0, %" #d "1, %" #d "2, %" #d "3, %" #d "4, %" #d "5, %" #d "6, %" #d "7, %" #d "8, %" #d "9, "
#define PLIMSOLL_NINETY                                                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " PLIMSOLL_TEN(1) PLIMSOLL_TEN(2) PLIMSOLL_TEN(3) PLIMSOLL_TEN(4) \
      PLIMSOLL_TEN(5) PLIMSOLL_TEN(6) PLIMSOLL_TEN(7) PLIMSOLL_TEN(8)
#define PLIMSOLL_TILE(t) "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
#define PLIMSOLL_EIGHT(t)                                                                                   \
  PLIMSOLL_TILE(t), PLIMSOLL_TILE(t + 1), PLIMSOLL_TILE(t + 2), PLIMSOLL_TILE(t + 3), PLIMSOLL_TILE(t + 4), \
      PLIMSOLL_TILE(t + 5), PLIMSOLL_TILE(t + 6), PLIMSOLL_TILE(t + 7)
#define PLIMSOLL_OPERANDS "l"(left), "l"(right), "r"(static_cast<int>(adds)), "n"(left_in_columns), "n"(right_in_rows)
#define PLIMSOLL_PRODUCT_96(type) \
  asm volatile(                                                                                               \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"                                                           \
      "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " \
      PLIMSOLL_TEN(1) PLIMSOLL_TEN(2) PLIMSOLL_TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47}, "              \
      "%48, %49, p, 1, 1, %51, %52;\n}"                                                                       \
      : PLIMSOLL_EIGHT(0), PLIMSOLL_TILE(8), PLIMSOLL_TILE(9), PLIMSOLL_TILE(10), PLIMSOLL_TILE(11)           \
      : PLIMSOLL_OPERANDS)
#define PLIMSOLL_PRODUCT_128(type) \
  asm volatile(                                                                                                      \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                                                  \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {%0, %1, %2, %3, %4, %5, %6, %7, %8, "          \
      "%9, " PLIMSOLL_TEN(1) PLIMSOLL_TEN(2) PLIMSOLL_TEN(3) PLIMSOLL_TEN(4) PLIMSOLL_TEN(5) "%60, %61, %62, %63}, " \
      "%64, %65, p, 1, 1, %67, %68;\n}"                                                                              \
      : PLIMSOLL_EIGHT(0), PLIMSOLL_EIGHT(8)                                                                         \
      : PLIMSOLL_OPERANDS)
#define PLIMSOLL_PRODUCT_192(type)                                                      \
  asm volatile(                                                                         \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"                                      \
      "wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type " {" PLIMSOLL_NINETY \
      "%90, %91, %92, %93, %94, %95}, %96, %97, p, 1, 1, %99, %100;\n}"                 \
      : PLIMSOLL_EIGHT(0), PLIMSOLL_EIGHT(8), PLIMSOLL_EIGHT(16)                        \
      : PLIMSOLL_OPERANDS)
#define PLIMSOLL_PRODUCT_256(type) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                                   \
               "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" PLIMSOLL_NINETY PLIMSOLL_TEN(9) \
                   PLIMSOLL_TEN(10) PLIMSOLL_TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127}, "         \
               "%128, %129, p, 1, 1, %131, %132;\n}"                                                            \
               : PLIMSOLL_EIGHT(0), PLIMSOLL_EIGHT(8), PLIMSOLL_EIGHT(16), PLIMSOLL_EIGHT(24)                   \
               : PLIMSOLL_OPERANDS)

// sum (+)= left * right, left being [64, 16] and right [16, 8 tiles]. In shared memory a row of left lies along a row
// of a tile, or a column does so; of right likewise.
template <typename T, bool left_in_columns, bool right_in_rows, int tiles>
__device__ void start_wide_product(float (*sum)[4], uint64_t left, uint64_t right, bool adds = true) {
  static_assert(tiles == 12 || tiles == 16 || tiles == 24 || tiles == 32, "96, 128, 192 or 256 columns");
  constexpr bool is_bf16 = std::is_same_v<T, bf16>;
  if constexpr (tiles == 12 && is_bf16) PLIMSOLL_PRODUCT_96("bf16");
  if constexpr (tiles == 12 && !is_bf16) PLIMSOLL_PRODUCT_96("f16");
  if constexpr (tiles == 16 && is_bf16) PLIMSOLL_PRODUCT_128("bf16");
  if constexpr (tiles == 16 && !is_bf16) PLIMSOLL_PRODUCT_128("f16");
  if constexpr (tiles == 24 && is_bf16) PLIMSOLL_PRODUCT_192("bf16");
  if constexpr (tiles == 24 && !is_bf16) PLIMSOLL_PRODUCT_192("f16");
  if constexpr (tiles == 32 && is_bf16) PLIMSOLL_PRODUCT_256("bf16");
  if constexpr (tiles == 32 && !is_bf16) PLIMSOLL_PRODUCT_256("f16");
}

#undef PLIMSOLL_PRODUCT_256
#undef PLIMSOLL_PRODUCT_192
#undef PLIMSOLL_PRODUCT_128
#undef PLIMSOLL_PRODUCT_96
#undef PLIMSOLL_OPERANDS
#undef PLIMSOLL_EIGHT
#undef PLIMSOLL_TILE
#undef PLIMSOLL_NINETY
#undef PLIMSOLL_TEN

}  // namespace plimsoll::cuda
