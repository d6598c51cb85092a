#pragma once

// Dense layers of few columns on one side over many rows: y = x w + bias + addend, and the gradients of w and bias.

#include "kernels/cuda/matmul/narrow_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// All are of `type`, which is f32, bf16 or f16; sizes.has_product(). w is [inner, columns], or [columns, inner] with
// transpose_w. bias and addend may be null.
struct NarrowProductCall {
  NarrowSizes sizes;
  const void *x, *w, *bias, *addend;
  void* y;
  Scalar type;
  bool transpose_w;
};
[[nodiscard]] cudaError_t narrow_product(const NarrowProductCall& call, cudaStream_t stream);

// dw is [inner, columns], or [columns, inner] with transpose_w. dw, the addend and dbias, of which the latter two may
// be null, are f32 or of x's type; sizes.is_narrow(). The workspace has sizes.gradient_workspace() floats.
struct NarrowGradientCall {
  NarrowSizes sizes;
  const void *x, *dy, *addend;
  void *dw, *dbias;
  float* workspace;
  Scalar type, dw_type;
  bool transpose_w;
};
[[nodiscard]] cudaError_t narrow_gradient(const NarrowGradientCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
