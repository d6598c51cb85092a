#pragma once

#include "kernels/cuda/matmul/narrow_gradient_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// Which way round dw lies: [columns, few_columns], or [few_columns, columns].
enum class NarrowSide : uint8_t { Columns, Rows };

struct NarrowGradient {
  NarrowGradientSizes sizes;  // fit() holds
  NarrowSide few;
  const void *wide, *narrow;  // in `type`, bf16 or f16
  const void* addend;         // as dw lies, in `to`; null: none. May be dw.
  void* dw;                   // in `to`: `type` or f32
  float* workspace;           // sizes.workspace_bytes()
};

// dw = the transpose of one operand times the other, summed over all rows in f32 and in a fixed order, plus the addend.
[[nodiscard]] cudaError_t narrow_gradient(const NarrowGradient& call, Scalar type, Scalar to, cudaStream_t stream);

}  // namespace plimsoll::cuda
