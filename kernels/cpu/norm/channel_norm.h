#pragma once

// Norms whose scale and bias belong to channels: batch and group normalisation of x [batch, channels, inner].

#include "kernels/norm_activation.h"

#include <cstdint>

namespace plimsoll::cpu {

struct ChannelShape {
  int64_t batch, channels, inner;
};

struct BatchNormCall {
  ChannelShape shape;
  float eps;
  float *y, *mean, *var;
  const float *x, *scale, *bias;
  const float* residual = nullptr;                   // added to what is normalised
  NormActivation activation = NormActivation::None;  // last of all
};
// Statistics of each channel over the batch: mean and biased var [channels]. y may be x or the residual.
void batch_norm(const BatchNormCall& call);

struct BatchNormGradCall {
  ChannelShape shape;
  float eps;
  float *dx, *dscale, *dbias;
  const float *x, *dy, *scale, *mean, *var;
  NormActivation activation = NormActivation::Relu;  // where there is one
  const float* bias = nullptr;                       // of a norm with an activation
  const float* y = nullptr;                          // of a norm with a residual and a ReLU; dresidual is wanted too
  const float* more_dy = nullptr;                    // with y: added to dy
  float* dresidual = nullptr;
};
// dx may be x or dy, dresidual either dy.
void batch_norm_grad(const BatchNormGradCall& call);

// The same in parts, for statistics and sums that come from elsewhere. First mean and biased var [channels] alone.
void batch_moments(const ChannelShape& shape, float* mean, float* var, const float* x);
// By mean and var; those of the call are not used.
void batch_norm_given(const BatchNormCall& call, const float* mean, const float* var);
// All of the gradient but dx. sums [2, channels]: of the gradient in front of the activation, and of that times xhat.
void batch_norm_sums(const BatchNormGradCall& call, float* sums);
// dx alone, from the sums over `count` elements of each channel; dy is what the sums are of, or with a bias what the
// activation has yet to pass on.
void batch_norm_dx(const BatchNormGradCall& call, const float* sums, double count);

// The running statistics move towards the batch's: y = momentum * running + share * batch. y may be running.
void running_update(double momentum, double share, float* y, const float* running, const float* batch,
                    int64_t channels);

// Statistics of each of `groups` runs of channels in each sample: mean and rstd [batch, groups]. A null
// scale, bias, dscale or dbias is an absent one. Backward reads the bias of a norm with an activation alone.
void group_norm(const ChannelShape& shape, int64_t groups, NormActivation activation, float eps, float* y, float* mean,
                float* rstd, const float* x, const float* scale, const float* bias);
void group_norm_grad(const ChannelShape& shape, int64_t groups, NormActivation activation, float* dx, float* dscale,
                     float* dbias, const float* x, const float* dy, const float* mean, const float* rstd,
                     const float* scale, const float* bias);

}  // namespace plimsoll::cpu
