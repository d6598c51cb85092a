#pragma once

// The matrix units as warps use them: 16 x 8 x 16 products of 16-bit floats summed in f32 (sm_80 and newer), fragments
// read from shared memory, and 16-byte copies into it that run beside computing.
//
// Thread 4 g + t of a warp holds of a 16 x 8 sum rows g (elements 0, 1) and g + 8 (2, 3), columns 2 t and 2 t + 1.

#include "kernels/cuda/common/element.cuh"

namespace plimsoll::cuda {

// The left operand of a product, 16 x 16, and the right operands of two neighbouring ones, 16 x 8 each.
struct LeftFragment {
  uint32_t at[4];
};
struct RightFragments {
  uint32_t at[4];
};

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Thread 8 m + i gives the address of row i of 8 x 8 matrix m; the rows are 16 bytes and lie at 16-byte borders.
__device__ inline void load_matrices(uint32_t (&at)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(at[0]), "=r"(at[1]), "=r"(at[2]), "=r"(at[3])
               : "r"(shared_address(row)));
}
__device__ inline void load_matrices_transposed(uint32_t (&at)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(at[0]), "=r"(at[1]), "=r"(at[2]), "=r"(at[3])
               : "r"(shared_address(row)));
}

// Writes them so; the other way round (sm_90).
__device__ inline void store_matrices(void* row, const uint32_t (&at)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
               : "memory");
}

// sum += left * right, with the first (half = 0) or the second of the right operands.
template <typename T>
__device__ void multiply_add(float (&sum)[4], const LeftFragment& left, const RightFragments& right, int half) {
  const uint32_t *a = left.at, *b = right.at + 2 * half;
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two floats as the 16-bit halves of a word, the first in the lower half.
template <typename T>
__device__ uint32_t packed_pair(float low, float high) {
  union {
    uint32_t word;
    std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2> pair;
  };
  if constexpr (std::is_same_v<T, bf16>)
    pair = __floats2bfloat162_rn(low, high);
  else
    pair = __floats2half2_rn(low, high);
  return word;
}

// 2^x; numbers below 2^-126 become 0.
__device__ inline float exp2_approx(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// tanh(x) within 2^-10.9 of its size.
__device__ inline float tanh_approx(float x) {
  float tangent;
  asm("tanh.approx.f32 %0, %1;" : "=f"(tangent) : "f"(x));
  return tangent;
}

// Copies 16 bytes from global to shared memory, or writes zeros where `inside` is false.
__device__ inline void copy_async(void* to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
// Copies one word, or writes a zero.
__device__ inline void copy_word_async(void* to, const void* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 4 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until no more than `pending` of the newest groups are still under way.
template <int pending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace plimsoll::cuda
