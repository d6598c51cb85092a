#pragma once

// Gradients of small weights from few rows, as those of squeeze-and-excitation have one for each image:
// dw [left_columns, right_columns] = left^T right + addend, and the sums of dy, which is one of the two.

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace plimsoll::cuda {

// left [rows, left_columns] and right [rows, right_columns] of `type`, which is bf16 or f16; both numbers of columns
// are even. dw, the addend and dbias, of which the latter two may be null, are f32 or of that type; dbias has a sum for
// each column of dy.
struct FewRowsGradientCall {
  int64_t rows, left_columns, right_columns;
  const void *left, *right, *addend;
  void *dw, *dbias;
  Scalar type, dw_type;
  bool left_is_dy;
};
[[nodiscard]] cudaError_t few_rows_gradient(const FewRowsGradientCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
