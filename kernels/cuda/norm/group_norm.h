#pragma once

// Group normalisation of x [batch, channels, inner], or [batch, inner, channels] with channels_last: `groups` runs of
// channels in each sample, a pair of statistics each, mean and rstd [batch, groups] in f32. Tensors are of x_type;
// scale, bias and their gradients [channels] of any float type. Null pointers are absent.

#include "kernels/norm_activation.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

struct GroupShape {
  int64_t batch, channels, inner, groups;
  bool channels_last;

  constexpr int64_t rows() const { return batch * groups; }
  constexpr int64_t channels_per_group() const { return channels / groups; }
};

struct GroupNormCall {
  GroupShape shape;
  NormActivation activation;
  void* y;
  float *mean, *rstd;
  const void *x, *scale, *bias;
  Scalar x_type, parameter_type;
  float eps;
  float* workspace = nullptr;  // of group_norm_in_parts: group_parts_workspace() floats
};
[[nodiscard]] cudaError_t group_norm(const GroupNormCall& call, cudaStream_t stream);

struct GroupNormGradCall {
  GroupShape shape;
  NormActivation activation;
  void *dx, *dscale, *dbias;
  const void *x, *dy, *scale, *bias;  // the bias is that of a norm with an activation
  const float *mean, *rstd;
  Scalar x_type, parameter_type;
  float* workspace;  // 2 * batch * channels floats, in parts group_parts_grad_workspace()
};
[[nodiscard]] cudaError_t group_norm_grad(const GroupNormGradCall& call, cudaStream_t stream);

// The same by many blocks a group: group_parts.h.
[[nodiscard]] cudaError_t group_norm_in_parts(const GroupNormCall& call, cudaStream_t stream);
[[nodiscard]] cudaError_t group_norm_grad_in_parts(const GroupNormGradCall& call, cudaStream_t stream);

// Local response normalisation (Krizhevsky et al. 2012) of x [batch, channels, inner].
struct ResponseShape {
  int64_t batch, channels, inner, size;
  float alpha, beta, bias;
};
[[nodiscard]] cudaError_t lrn(const ResponseShape& shape, Scalar type, void* y, const void* x, cudaStream_t stream);
[[nodiscard]] cudaError_t lrn_grad(const ResponseShape& shape, Scalar type, void* dx, const void* x, const void* dy,
                                   cudaStream_t stream);

}  // namespace plimsoll::cuda
