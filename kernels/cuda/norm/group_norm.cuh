#pragma once

// Group norms of both layouts share a pair of sums for each channel of each sample, from which backward computes all
// else, and the kernel that adds them up over samples.

#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/elementwise/formulas.cuh"
#include "kernels/cuda/norm/group_norm.h"

namespace plimsoll::cuda {

inline __device__ float parameter_at(const void* parameters, Scalar type, int64_t i, float otherwise) {
  return parameters ? load_any<float>(AnyTensor{parameters, type}, i) : otherwise;
}

inline __device__ float activated(float z, NormActivation activation) {
  switch (activation) {
    case NormActivation::Relu: return relu(z);
    case NormActivation::Silu: return z * sigmoid(z);
    default: return z;
  }
}

// The gradient in front of the activation, of the one behind it.
inline __device__ float activation_grad(float dy, float z, NormActivation activation) {
  switch (activation) {
    case NormActivation::Relu: return z > 0 ? dy : 0.0f;
    case NormActivation::Silu: return dy * silu_slope(z);
    default: return dy;
  }
}

// The mean of 16-bit floats is taken off what is made of them, and not off each of them: what cancels so is less than
// what rounding took from the elements themselves.
template <typename T>
constexpr bool is_short = sizeof(T) == 2;

template <typename T>
__device__ float quick_activated(float z, NormActivation activation) {
  if (is_short<T> && activation == NormActivation::Silu) return z * __fdividef(1.0f, 1.0f + __expf(-z));
  return activated(z, activation);
}
template <typename T>
__device__ float quick_activation_grad(float dy, float z, NormActivation activation) {
  if (!is_short<T> || activation != NormActivation::Silu) return activation_grad(dy, z, activation);
  const float s = __fdividef(1.0f, 1.0f + __expf(-z));
  return dy * (s * (1.0f + z * (1.0f - s)));
}

// What a channel of a group is normalised with, and its gradient in front of the activation: x is how far an element is
// from the mean.
struct NormChannel {
  float factor, offset;

  __device__ NormChannel(const GroupNormGradCall& call, int64_t channel, float rstd)
      : factor(rstd * parameter_at(call.scale, call.parameter_type, channel, 1.0f)),
        offset(parameter_at(call.bias, call.parameter_type, channel, 0.0f)) {}
  __device__ float grad(float dy, float x, NormActivation activation) const {
    return activation_grad(dy, x * factor + offset, activation);
  }
};

// Sums over elements of the gradient in front of the activation.
struct GradSums {
  float dy, dy_xhat;
  __device__ GradSums operator+(const GradSums& other) const { return {dy + other.dy, dy_xhat + other.dy_xhat}; }
};

// The averages over a group in dx = rstd * (g - average_g - xhat * average_g_xhat), with g = dy * scale. Every thread
// of the block takes part; `planes` [batch, channels] are sums over positions.
struct GroupAverages {
  float g, g_xhat;

  __device__ GroupAverages(const GroupNormGradCall& call, const GradSums* planes, int64_t row) {
    const GroupShape& shape = call.shape;
    const int64_t channels = shape.channels_per_group(), first_channel = row % shape.groups * channels;
    GradSums sums{0, 0};
    for (int64_t c = threadIdx.x; c < channels; c += blockDim.x) {
      const float scale = parameter_at(call.scale, call.parameter_type, first_channel + c, 1.0f);
      const GradSums plane = planes[row * channels + c];
      sums = sums + GradSums{scale * plane.dy, scale * plane.dy_xhat};
    }
    sums = block_reduce(sums, Add(), GradSums{0, 0});
    const auto width = static_cast<float>(channels * shape.inner);
    g = sums.dy / width;
    g_xhat = sums.dy_xhat / width;
  }
};

// For x [batch, inner, channels] in slabs of samples. On Hopper these go through rings where they fit.
// cudaErrorNotSupported, and nothing is launched, where they do not, or where slabs are too few.
[[nodiscard]] cudaError_t group_norm_in_rings(const GroupNormCall& call, cudaStream_t stream);
[[nodiscard]] cudaError_t group_dx_in_rings(const GroupNormGradCall& call, GradSums* planes, cudaStream_t stream);
[[nodiscard]] cudaError_t group_norm_in_slabs(const GroupNormCall& call, cudaStream_t stream);
[[nodiscard]] cudaError_t group_dx_in_slabs(const GroupNormGradCall& call, GradSums* planes, cudaStream_t stream);

// Sums planes [batch, channels] over samples into dscale and dbias, where these are wanted.
[[nodiscard]] cudaError_t parameter_grads(const GroupNormGradCall& call, const GradSums* planes, cudaStream_t stream);

// For any such x.
[[nodiscard]] cudaError_t group_norm_channels_last(const GroupNormCall& call, cudaStream_t stream);
[[nodiscard]] cudaError_t group_dx_channels_last(const GroupNormGradCall& call, GradSums* planes, cudaStream_t stream);

}  // namespace plimsoll::cuda
