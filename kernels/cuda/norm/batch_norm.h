#pragma once

// Batch normalisation. x, y and their gradients are of x_type, the statistics of a batch f32 [channels]; parameters and
// stored statistics [channels] may be of any float type. Two passes over the tensors each way.

#include "kernels/cuda/common/partials.h"
#include "kernels/norm_activation.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

struct BatchNormCall {
  ChannelShape shape;
  void* y;
  const void *x, *scale, *bias;                      // null: 1 and 0
  const void* residual = nullptr;                    // of x's type, added to what is normalised
  NormActivation activation = NormActivation::None;  // last of all
  Scalar x_type, parameter_type;
  float eps;
  float* workspace;  // batch_norm_workspace, or batch_norm_inference_workspace
};
// Statistics over the batch: mean and biased variance. y may be x or the residual.
[[nodiscard]] cudaError_t batch_norm(const BatchNormCall& call, float* mean, float* var, cudaStream_t stream);
// The same in one launch, of shapes that ResidentChannels takes, on cards of compute capability 9.0. The workspace has
// resident_workspace floats.
[[nodiscard]] cudaError_t batch_norm_resident(const BatchNormCall& call, float* mean, float* var, cudaStream_t stream);
// With given statistics; y may be x.
[[nodiscard]] cudaError_t batch_norm_inference(const BatchNormCall& call, const void* mean, const void* var,
                                               Scalar mean_type, Scalar var_type, cudaStream_t stream);

// The statistics alone; y and what comes behind it are not used.
[[nodiscard]] cudaError_t batch_moments(const BatchNormCall& call, float* mean, float* var, cudaStream_t stream);
// mean and var [channels] of everything from those of `ranks` equally large parts, moments [ranks, 2, channels].
[[nodiscard]] cudaError_t merge_moments(float* mean, float* var, const float* moments, int64_t ranks, int64_t channels,
                                        cudaStream_t stream);

struct BatchNormGradCall {
  ChannelShape shape;
  void *dx, *dscale, *dbias;
  const void *x, *dy, *scale;
  NormActivation activation = NormActivation::Relu;  // where there is one
  const void* bias = nullptr;                        // of a norm with an activation
  const void* y = nullptr;                           // of a norm with a residual and a ReLU; dresidual is wanted too
  const void* more_dy = nullptr;                     // with y: added to dy
  void* dresidual = nullptr;
  const float *mean, *var;
  Scalar x_type, parameter_type;
  float eps;
  float* workspace;  // batch_norm_grad_workspace
};
// dx may be x or dy, dresidual either dy.
[[nodiscard]] cudaError_t batch_norm_grad(const BatchNormGradCall& call, cudaStream_t stream);
// As batch_norm_resident.
[[nodiscard]] cudaError_t batch_norm_grad_resident(const BatchNormGradCall& call, cudaStream_t stream);

// The same in two parts, between which sums [2, channels] are added up over ranks: of dz, and of dz * xhat. The first
// makes all but dx. The second makes dx from the sums over `count` elements of each channel; y is null, and dy is what
// the sums are of, or with a bias what the activation has yet to pass on.
[[nodiscard]] cudaError_t batch_norm_sums(const BatchNormGradCall& call, float* sums, cudaStream_t stream);
[[nodiscard]] cudaError_t batch_norm_dx(const BatchNormGradCall& call, const float* sums, float count,
                                        cudaStream_t stream);

}  // namespace plimsoll::cuda
