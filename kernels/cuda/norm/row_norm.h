#pragma once

// Layer and RMS normalisation of x [rows, width] by rows. x, y and the gradients are of x_type; scale and bias, and
// their gradients, of parameter_type, which is f32 or x_type; mean and rstd [rows] are f32. Null pointers are absent.
// An RMS norm has no mean.

#include "kernels/cuda/common/partials.h"
#include "kernels/cuda/elementwise/random.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

struct RowNormCall {
  void* y;
  float *mean, *rstd;
  const void *x, *scale, *bias;
  Scalar x_type, parameter_type;
  int64_t rows, width;
  float eps;
};
[[nodiscard]] cudaError_t layer_norm(const RowNormCall& call, cudaStream_t stream);
[[nodiscard]] cudaError_t rms_norm(const RowNormCall& call, cudaStream_t stream);

struct RowNormGradCall {
  void *dx, *dscale, *dbias;
  const void *x, *dy, *scale;
  const void* addend;  // of x's type and shape, added to dx, which may lie over it
  const float *mean, *rstd;
  Scalar x_type, parameter_type;
  int64_t rows, width;
  void* dropped;  // dx, rounded to its type, behind this dropout; null where it is not wanted
  RandomStream stream;
  ElementDropout dropout;
  float* workspace;  // row_norm_partials(rows) * width floats for each of dscale and dbias that is there
};
[[nodiscard]] cudaError_t layer_norm_grad(const RowNormGradCall& call, cudaStream_t stream);
[[nodiscard]] cudaError_t rms_norm_grad(const RowNormGradCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
