#pragma once

// What kernels of convolutions on the matrix units share: products of 8 instead of 16 terms, and launches by how many
// units of 8 channels a warp makes.

#include "kernels/cuda/common/tensor_core.cuh"

#include <cuda_runtime.h>

namespace plimsoll::cuda {

// sum += the first 8 columns of left times the first 8 rows of one of the right operands.
template <typename T>
__device__ void multiply_add_half(float (&sum)[4], const LeftFragment& left, const RightFragments& right, int half) {
  const uint32_t *a = left.at, b = right.at[2 * half];
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

// Calls visit with a null pointer of the 16-bit float type.
template <typename Visit>
cudaError_t with_16_bits(Scalar type, Visit visit) {
  switch (type) {
    case Scalar::BF16: return visit(static_cast<bf16*>(nullptr));
    case Scalar::F16: return visit(static_cast<f16*>(nullptr));
    default: return cudaErrorInvalidValue;
  }
}

// Calls visit with the count as a constant; GroupedTiles have no others.
template <typename Visit>
cudaError_t with_unit_tiles(int count, Visit visit) {
  switch (count) {
    case 1: return visit(std::integral_constant<int, 1>());
    case 2: return visit(std::integral_constant<int, 2>());
    case 3: return visit(std::integral_constant<int, 3>());
    case 4: return visit(std::integral_constant<int, 4>());
    case 6: return visit(std::integral_constant<int, 6>());
    case 8: return visit(std::integral_constant<int, 8>());
    default: return cudaErrorInvalidValue;
  }
}

// The same for any count up to max_unit_tiles.
template <typename Visit>
cudaError_t with_any_units(int count, Visit visit) {
  switch (count) {
    case 5: return visit(std::integral_constant<int, 5>());
    case 7: return visit(std::integral_constant<int, 7>());
    default: return with_unit_tiles(count, visit);
  }
}

template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

}  // namespace plimsoll::cuda
