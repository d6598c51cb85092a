#pragma once

// The matrix units as warpgroups of Hopper use them (sm_90a): 128 threads share 64 x 64 x 16 products of 16-bit floats,
// summed in f32, which run beside whatever the threads do next. The right operand lies in shared memory, the left one
// there or in registers. Warp w of the four holds rows 16 w to 16 w + 15 of sums and left operands, as in
// tensor_core.cuh.
//
// A tile in shared memory is made of boxes of 64 columns: a row has 128 bytes there, and its 16-byte word w stands
// at place w ^ (row % 8). A tile begins at a border of 1024 bytes. Both a tile and its transpose can be a right
// operand. Tiles whose width is no multiple of 64 are made of boxes of 16 columns (narrow_boxes.cuh).

#include "kernels/cuda/common/tensor_core.cuh"

namespace plimsoll::cuda {

// Where this is false kernels trap: they are launched on Hopper alone, for which code must have been built as sm_90a.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool has_warpgroups = true;
#else
inline constexpr bool has_warpgroups = false;
#endif

inline constexpr int warpgroup_threads = 128, warpgroup_rows = 64;

// What the matrix units need to know of a matrix that begins here.
__device__ inline uint64_t shared_matrix(const void* first) {
  constexpr uint64_t eight_rows = 1024 >> 4, swizzles_128_bytes = 1;
  return (shared_address(first) & 0x3ffff) >> 4 | eight_rows << 32 | swizzles_128_bytes << 62;
}

// Before products whose sums or left operands this thread has written.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until no more than `pending` of the newest groups of products are still under way.
template <int pending>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// What this thread has written to shared memory becomes visible to the matrix units.
__device__ inline void show_to_matrix_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A warpgroup gives registers back, or takes those that others gave: so many a thread, a multiple of 8.
template <int count>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// Keeps the compiler from reading sums before the wait that precedes this.
template <int tiles>
__device__ void settle(float (&sums)[tiles][4]) {
#pragma unroll
  for (float(&tile)[4] : sums)
#pragma unroll
    for (float& sum : tile) asm volatile("" : "+f"(sum)::"memory");
}

// The 32 sums of a thread are operands 0 to 31; a macro because an instruction's text must be one literal.
#define PLIMSOLL_SUMS_TEXT                                                                                          \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}"
#define PLIMSOLL_TILE(t) "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
#define PLIMSOLL_SUMS                                                                                         \
  PLIMSOLL_TILE(0), PLIMSOLL_TILE(1), PLIMSOLL_TILE(2), PLIMSOLL_TILE(3), PLIMSOLL_TILE(4), PLIMSOLL_TILE(5), \
      PLIMSOLL_TILE(6), PLIMSOLL_TILE(7)
#define PLIMSOLL_SHARED_PRODUCT(type, transposes)                                        \
  asm volatile(                                                                          \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                       \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " PLIMSOLL_SUMS_TEXT \
      ", %32, %33, p, 1, 1, " transposes ";\n}"                                          \
      : PLIMSOLL_SUMS                                                                    \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)))
#define PLIMSOLL_REGISTER_PRODUCT(type)                                                  \
  asm volatile(                                                                          \
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                         \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " PLIMSOLL_SUMS_TEXT \
      ", {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"                                      \
      : PLIMSOLL_SUMS                                                                    \
      : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "l"(right))
#define PLIMSOLL_NARROW_PRODUCT(type)                                                                        \
  asm volatile(                                                                                              \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                                                           \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                                            \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 0;\n}" \
      : PLIMSOLL_TILE(0), PLIMSOLL_TILE(1), PLIMSOLL_TILE(2), PLIMSOLL_TILE(3)                               \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)))

#define PLIMSOLL_NARROW_TRANSPOSED_PRODUCT(type)                                                             \
  asm volatile(                                                                                              \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                                                           \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                                            \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 1, 1;\n}" \
      : PLIMSOLL_TILE(0), PLIMSOLL_TILE(1), PLIMSOLL_TILE(2), PLIMSOLL_TILE(3)                               \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)))

// sum (+)= left * right^T, both [64, 16] in shared memory; sum is 8 tiles of 64 x 8.
template <typename T>
__device__ void start_product(float (*sum)[4], uint64_t left, uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_SHARED_PRODUCT("bf16", "0, 0");
  else
    PLIMSOLL_SHARED_PRODUCT("f16", "0, 0");
}
// sum (+)= left^T * right, both [16, 64] in shared memory.
template <typename T>
__device__ void start_transposed_product(float (*sum)[4], uint64_t left, uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_SHARED_PRODUCT("bf16", "1, 1");
  else
    PLIMSOLL_SHARED_PRODUCT("f16", "1, 1");
}
// sum += left * right, left being [64, 16] and right [16, 64] in shared memory.
template <typename T>
__device__ void start_rows_product(float (*sum)[4], uint64_t left, uint64_t right) {
  constexpr bool adds = true;
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_SHARED_PRODUCT("bf16", "0, 1");
  else
    PLIMSOLL_SHARED_PRODUCT("f16", "0, 1");
}
// sum (+)= left * right^T, left being [64, 16] and right [32, 16] in shared memory; sum is 4 tiles of 64 x 8.
template <typename T>
__device__ void start_narrow_product(float (*sum)[4], uint64_t left, uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_NARROW_PRODUCT("bf16");
  else
    PLIMSOLL_NARROW_PRODUCT("f16");
}
// sum (+)= left^T * right, left being [16, 64] and right [16, 32] in shared memory; sum is 4 tiles of 64 x 8.
template <typename T>
__device__ void start_narrow_transposed_product(float (*sum)[4], uint64_t left, uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_NARROW_TRANSPOSED_PRODUCT("bf16");
  else
    PLIMSOLL_NARROW_TRANSPOSED_PRODUCT("f16");
}
// sum += left * right, right being [16, 64] in shared memory.
template <typename T>
__device__ void start_product(float (*sum)[4], const LeftFragment& left, uint64_t right) {
  if constexpr (std::is_same_v<T, bf16>)
    PLIMSOLL_REGISTER_PRODUCT("bf16");
  else
    PLIMSOLL_REGISTER_PRODUCT("f16");
}

#undef PLIMSOLL_NARROW_TRANSPOSED_PRODUCT
#undef PLIMSOLL_NARROW_PRODUCT
#undef PLIMSOLL_REGISTER_PRODUCT
#undef PLIMSOLL_SHARED_PRODUCT
#undef PLIMSOLL_SUMS
#undef PLIMSOLL_TILE
#undef PLIMSOLL_SUMS_TEXT

}  // namespace plimsoll::cuda
