#pragma once

#include "kernels/cuda/conv/plane_taps.h"
#include "runtime/kernels/conv.h"

namespace plimsoll {

// A convolution over volumes with channels last, as our own kernels see it; none where they do not take it: one channel
// to 16 of 16-bit floats with one tap in the last dimension, with strides and dilations of 1.
std::optional<cuda::PlaneTaps> plane_taps_sizes(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results);

}  // namespace plimsoll
