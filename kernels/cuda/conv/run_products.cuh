#pragma once

// Products of a warpgroup whose operands lie in shared memory without swizzle, of 8 to 64 columns.

#include "kernels/cuda/common/warpgroup.cuh"

namespace plimsoll::cuda {

// A matrix without swizzle: 8 rows of 16 bytes lie one after the other, `eight_rows` units of 16 bytes further the
// next 8, and `next_terms` further the next 8 terms.
__device__ inline uint64_t plain_matrix(uint32_t first_unit, uint32_t next_terms, uint32_t eight_rows) {
  return uint64_t{first_unit} | uint64_t{next_terms} << 16 | uint64_t{eight_rows} << 32;
}

// Which index of an operand follows a row of 16 bytes: its terms, or its rows. In the latter case 8 terms lie one after
// the other, `eight_rows` units further the next 8 rows, and `next_terms` further the next 8 terms.
enum class Along { Terms, Rows };

// sum = left * right^T, or the same added; left [64, 16] and right [8 * units, 16] in shared memory.
template <typename T, int units, Along of_left = Along::Terms, Along of_right = Along::Terms>
__device__ void start_run_product(float (&sum)[units][4], uint64_t left, uint64_t right, bool adds) {
#define PLIMSOLL_TILE(t) "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
#define PLIMSOLL_RUN(type, columns, sums, l, r, p, tl, tr, ...)                                           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns \
               "k16.f32." type "." type " {" sums "}, %" #l ", %" #r ", p, 1, 1, %" #tl ", %" #tr ";\n}"  \
               : __VA_ARGS__                                                                              \
               : "l"(left), "l"(right), "r"(static_cast<int>(adds)), "n"(of_left == Along::Rows ? 1 : 0), \
                 "n"(of_right == Along::Rows ? 1 : 0))
#define PLIMSOLL_UNITS(count, ...)         \
  if constexpr (units == count) {          \
    if constexpr (std::is_same_v<T, bf16>) \
      PLIMSOLL_RUN("bf16", __VA_ARGS__);   \
    else                                   \
      PLIMSOLL_RUN("f16", __VA_ARGS__);    \
  }
#define PLIMSOLL_8 "%0, %1, %2, %3"
#define PLIMSOLL_16 PLIMSOLL_8 ", %4, %5, %6, %7"
#define PLIMSOLL_24 PLIMSOLL_16 ", %8, %9, %10, %11"
#define PLIMSOLL_32 PLIMSOLL_24 ", %12, %13, %14, %15"
#define PLIMSOLL_40 PLIMSOLL_32 ", %16, %17, %18, %19"
#define PLIMSOLL_48 PLIMSOLL_40 ", %20, %21, %22, %23"
#define PLIMSOLL_56 PLIMSOLL_48 ", %24, %25, %26, %27"
#define PLIMSOLL_64 PLIMSOLL_56 ", %28, %29, %30, %31"
#define PLIMSOLL_TILES_2 PLIMSOLL_TILE(0), PLIMSOLL_TILE(1)
#define PLIMSOLL_TILES_4 PLIMSOLL_TILES_2, PLIMSOLL_TILE(2), PLIMSOLL_TILE(3)
#define PLIMSOLL_TILES_6 PLIMSOLL_TILES_4, PLIMSOLL_TILE(4), PLIMSOLL_TILE(5)
  PLIMSOLL_UNITS(1, 8, PLIMSOLL_8, 4, 5, 6, 7, 8, PLIMSOLL_TILE(0))
  PLIMSOLL_UNITS(2, 16, PLIMSOLL_16, 8, 9, 10, 11, 12, PLIMSOLL_TILES_2)
  PLIMSOLL_UNITS(3, 24, PLIMSOLL_24, 12, 13, 14, 15, 16, PLIMSOLL_TILES_2, PLIMSOLL_TILE(2))
  PLIMSOLL_UNITS(4, 32, PLIMSOLL_32, 16, 17, 18, 19, 20, PLIMSOLL_TILES_4)
  PLIMSOLL_UNITS(5, 40, PLIMSOLL_40, 20, 21, 22, 23, 24, PLIMSOLL_TILES_4, PLIMSOLL_TILE(4))
  PLIMSOLL_UNITS(6, 48, PLIMSOLL_48, 24, 25, 26, 27, 28, PLIMSOLL_TILES_6)
  PLIMSOLL_UNITS(7, 56, PLIMSOLL_56, 28, 29, 30, 31, 32, PLIMSOLL_TILES_6, PLIMSOLL_TILE(6))
  PLIMSOLL_UNITS(8, 64, PLIMSOLL_64, 32, 33, 34, 35, 36, PLIMSOLL_TILES_6, PLIMSOLL_TILE(6), PLIMSOLL_TILE(7))
#undef PLIMSOLL_TILES_6
#undef PLIMSOLL_TILES_4
#undef PLIMSOLL_TILES_2
#undef PLIMSOLL_64
#undef PLIMSOLL_56
#undef PLIMSOLL_48
#undef PLIMSOLL_40
#undef PLIMSOLL_32
#undef PLIMSOLL_24
#undef PLIMSOLL_16
#undef PLIMSOLL_8
#undef PLIMSOLL_UNITS
#undef PLIMSOLL_RUN
#undef PLIMSOLL_TILE
}

}  // namespace plimsoll::cuda
