#pragma once

// Products of a warpgroup whose left operand, [64, 16], lies in registers, with 24 to 128 columns at once.

#include "kernels/cuda/common/warpgroup.cuh"

namespace plimsoll::cuda {

// A right operand that may begin at any row of a tile whose rows have 128 bytes, so many units of 16 bytes from the
// beginning of shared memory. Where columns lie along rows, those behind the first 64 are those of other rows,
// `further` units behind the first ones.
__device__ inline uint64_t shared_rows(uint32_t first_unit, uint32_t further = 0) {
  constexpr uint64_t eight_rows = 1024 >> 4, swizzles_128_bytes = 1;
  return first_unit | uint64_t{further} << 16 | eight_rows << 32 | swizzles_128_bytes << 62;
}

#define PLIMSOLL_TEN(d) \
  "%" #d "0, %" #d "1, %" #d "2, %" #d "3, %" #d "4, %" #d "5, %" #d "6, %" #d "7, %" #d "8, %" #d "9"
#define PLIMSOLL_FIRST_TEN "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
#define PLIMSOLL_TILE(t) "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
#define PLIMSOLL_THREE(t) PLIMSOLL_TILE(t), PLIMSOLL_TILE(t + 1), PLIMSOLL_TILE(t + 2)
#define PLIMSOLL_FIVE(t) PLIMSOLL_THREE(t), PLIMSOLL_TILE(t + 3), PLIMSOLL_TILE(t + 4)
#define PLIMSOLL_PRODUCT(type, columns, sums_text, operands_text, ...)                                                \
  asm volatile(                                                                                                       \
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                                                      \
      "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" sums_text "}, " operands_text ";\n}" \
      : __VA_ARGS__                                                                                                   \
      : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "l"(right), "n"(right_in_rows))
#define PLIMSOLL_PRODUCT_24(type)                                                                        \
  PLIMSOLL_PRODUCT(type, 24, PLIMSOLL_FIRST_TEN ", %10, %11", "{%12, %13, %14, %15}, %16, p, 1, 1, %17", \
                   PLIMSOLL_THREE(0))
#define PLIMSOLL_PRODUCT_32(type)                                                 \
  PLIMSOLL_PRODUCT(type, 32, PLIMSOLL_FIRST_TEN ", %10, %11, %12, %13, %14, %15", \
                   "{%16, %17, %18, %19}, %20, p, 1, 1, %21", PLIMSOLL_THREE(0), PLIMSOLL_TILE(3))
#define PLIMSOLL_PRODUCT_48(type)                                                            \
  PLIMSOLL_PRODUCT(type, 48, PLIMSOLL_FIRST_TEN ", " PLIMSOLL_TEN(1) ", %20, %21, %22, %23", \
                   "{%24, %25, %26, %27}, %28, p, 1, 1, %29", PLIMSOLL_THREE(0), PLIMSOLL_THREE(3))
#define PLIMSOLL_PRODUCT_56(type)                                                                                \
  PLIMSOLL_PRODUCT(type, 56, PLIMSOLL_FIRST_TEN ", " PLIMSOLL_TEN(1) ", %20, %21, %22, %23, %24, %25, %26, %27", \
                   "{%28, %29, %30, %31}, %32, p, 1, 1, %33", PLIMSOLL_THREE(0), PLIMSOLL_THREE(3), PLIMSOLL_TILE(6))
#define PLIMSOLL_FIFTY \
  PLIMSOLL_FIRST_TEN ", " PLIMSOLL_TEN(1) ", " PLIMSOLL_TEN(2) ", " PLIMSOLL_TEN(3) ", " PLIMSOLL_TEN(4)
#define PLIMSOLL_PRODUCT_104(type)                                                                    \
  PLIMSOLL_PRODUCT(type, 104, PLIMSOLL_FIFTY ", %50, %51", "{%52, %53, %54, %55}, %56, p, 1, 1, %57", \
                   PLIMSOLL_FIVE(0), PLIMSOLL_FIVE(5), PLIMSOLL_THREE(10))
#define PLIMSOLL_PRODUCT_120(type)                                                                            \
  PLIMSOLL_PRODUCT(type, 120, PLIMSOLL_FIFTY ", " PLIMSOLL_TEN(5), "{%60, %61, %62, %63}, %64, p, 1, 1, %65", \
                   PLIMSOLL_FIVE(0), PLIMSOLL_FIVE(5), PLIMSOLL_FIVE(10))
#define PLIMSOLL_PRODUCT_128(type)                                                                                   \
  PLIMSOLL_PRODUCT(type, 128, PLIMSOLL_FIFTY ", " PLIMSOLL_TEN(5) ", %60, %61, %62, %63",                            \
                   "{%64, %65, %66, %67}, %68, p, 1, 1, %69", PLIMSOLL_FIVE(0), PLIMSOLL_FIVE(5), PLIMSOLL_FIVE(10), \
                   PLIMSOLL_TILE(15))

// sum += left * right, right being [16, columns]. In shared memory a row of right lies along a row of a tile, or a
// column does so; sum is tiles of 64 x 8.
template <typename T, int columns, bool right_in_rows>
__device__ __forceinline__ void start_columns_product(float (*sum)[4], const LeftFragment& left, uint64_t right) {
  constexpr bool is_bf16 = std::is_same_v<T, bf16>;
  static_assert(columns == 24 || columns == 32 || columns == 48 || columns == 56 || columns == 64 || columns == 104 ||
                columns == 120 || columns == 128);
  if constexpr (columns == 24 && is_bf16) PLIMSOLL_PRODUCT_24("bf16");
  if constexpr (columns == 24 && !is_bf16) PLIMSOLL_PRODUCT_24("f16");
  if constexpr (columns == 32 && is_bf16) PLIMSOLL_PRODUCT_32("bf16");
  if constexpr (columns == 32 && !is_bf16) PLIMSOLL_PRODUCT_32("f16");
  if constexpr (columns == 48 && is_bf16) PLIMSOLL_PRODUCT_48("bf16");
  if constexpr (columns == 48 && !is_bf16) PLIMSOLL_PRODUCT_48("f16");
  if constexpr (columns == 56 && is_bf16) PLIMSOLL_PRODUCT_56("bf16");
  if constexpr (columns == 56 && !is_bf16) PLIMSOLL_PRODUCT_56("f16");
  if constexpr (columns == 64) {
    static_assert(right_in_rows);
    start_product<T>(sum, left, right);
  }
  if constexpr (columns == 104 && is_bf16) PLIMSOLL_PRODUCT_104("bf16");
  if constexpr (columns == 104 && !is_bf16) PLIMSOLL_PRODUCT_104("f16");
  if constexpr (columns == 120 && is_bf16) PLIMSOLL_PRODUCT_120("bf16");
  if constexpr (columns == 120 && !is_bf16) PLIMSOLL_PRODUCT_120("f16");
  if constexpr (columns == 128 && is_bf16) PLIMSOLL_PRODUCT_128("bf16");
  if constexpr (columns == 128 && !is_bf16) PLIMSOLL_PRODUCT_128("f16");
}

// The same as settle, but always inlined: without that, sums that a kernel settles at several places leave the
// registers.
template <int tiles>
__device__ __forceinline__ void settle_here(float (&sums)[tiles][4]) {
#pragma unroll
  for (int i = 0; i < tiles; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k) asm volatile("" : "+f"(sums[i][k])::"memory");
}

#undef PLIMSOLL_PRODUCT_128
#undef PLIMSOLL_PRODUCT_120
#undef PLIMSOLL_PRODUCT_104
#undef PLIMSOLL_FIFTY
#undef PLIMSOLL_PRODUCT_56
#undef PLIMSOLL_PRODUCT_48
#undef PLIMSOLL_PRODUCT_32
#undef PLIMSOLL_PRODUCT_24
#undef PLIMSOLL_PRODUCT
#undef PLIMSOLL_FIVE
#undef PLIMSOLL_THREE
#undef PLIMSOLL_TILE
#undef PLIMSOLL_FIRST_TEN
#undef PLIMSOLL_TEN

}  // namespace plimsoll::cuda
