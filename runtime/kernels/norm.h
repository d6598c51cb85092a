#pragma once

#include "kernels/cuda/common/partials.h"
#include "kernels/norm_activation.h"
#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/kernel_call.h"

namespace plimsoll {

// x as rows that are normalised each by itself.
struct NormRows {
  int64_t count, width;
  explicit NormRows(const OpCall& call);
};

// An image, or a call's x, as [batch, channels, inner] or [batch, inner, channels].
cuda::ChannelShape channels_of(const Type& image, bool channels_last);
cuda::ChannelShape channels_of(const OpCall& call);

NormActivation activation_of(const OpCall& call);
// What stands behind a batch norm whose gradient has its bias.
NormActivation passed_activation_of(const OpCall& call);

inline float eps_of(const OpCall& call) { return static_cast<float>(call.get_float("eps")); }

}  // namespace plimsoll
