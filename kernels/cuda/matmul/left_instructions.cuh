#pragma once

// Products of a warpgroup with 200 columns at once, and sums that go to shared memory transposed.

#include "kernels/cuda/common/warpgroup_wide.cuh"

namespace plimsoll::cuda {

// Writes 8 x 8 matrices as store_matrices does, each transposed.
__device__ inline void store_matrices_transposed(void* row, const uint32_t (&at)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
               : "memory");
}

#define PLIMSOLL_TEN(d) \
  "%" #d "0, %" #d "1, %" #d "2, %" #d "3, %" #d "4, %" #d "5, %" #d "6, %" #d "7, %" #d "8, %" #d "9, "
#define PLIMSOLL_TILE(t) "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
#define PLIMSOLL_EIGHT(t)                                                                                   \
  PLIMSOLL_TILE(t), PLIMSOLL_TILE(t + 1), PLIMSOLL_TILE(t + 2), PLIMSOLL_TILE(t + 3), PLIMSOLL_TILE(t + 4), \
      PLIMSOLL_TILE(t + 5), PLIMSOLL_TILE(t + 6), PLIMSOLL_TILE(t + 7)
#define PLIMSOLL_PRODUCT_200(type) \
  asm volatile(                                                                                                     \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %102, 0;\n"                                                                 \
      "wgmma.mma_async.sync.aligned.m64n200k16.f32." type "." type                                                  \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " PLIMSOLL_TEN(1) PLIMSOLL_TEN(2) PLIMSOLL_TEN(3) PLIMSOLL_TEN(4)  \
          PLIMSOLL_TEN(5) PLIMSOLL_TEN(6) PLIMSOLL_TEN(7) PLIMSOLL_TEN(8) "%90, %91, %92, %93, %94, %95, %96, "     \
      "%97, %98, %99}, %100, %101, p, 1, 1, %103, 0;\n}"                                                            \
      : PLIMSOLL_EIGHT(0), PLIMSOLL_EIGHT(8), PLIMSOLL_EIGHT(16), PLIMSOLL_TILE(24)                                 \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)), "n"(left_in_columns))

// As start_wide_product, of a right operand in columns.
template <typename T, bool left_in_columns, int tiles>
__device__ void start_left_product(float (*sum)[4], uint64_t left, uint64_t right, bool adds = true) {
  if constexpr (tiles != 25)
    start_wide_product<T, left_in_columns, false, tiles>(sum, left, right, adds);
  else if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_PRODUCT_200("bf16");
  else
    PLIMSOLL_PRODUCT_200("f16");
}

#undef PLIMSOLL_PRODUCT_200
#undef PLIMSOLL_EIGHT
#undef PLIMSOLL_TILE
#undef PLIMSOLL_TEN

}  // namespace plimsoll::cuda
