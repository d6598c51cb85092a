#pragma once

#include "kernels/cuda/conv/depthwise_volumes.h"
#include "kernels/cuda/conv/volume_bands.h"
#include "kernels/cuda/conv/volume_sizes.h"
#include "kernels/cuda/conv/volume_windows.h"
#include "runtime/kernels/conv.h"

namespace plimsoll {

// A convolution over volumes with channels last, as our own kernels see it; none where they do not take it: 3 x 3 x 3
// taps of whole words of 16-bit floats, with strides and dilations of 1.
std::optional<cuda::VolumeSizes> volume_sizes(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results);

// The same of one channel a group: up to 7 x 5 x 5 taps in f32 or a 16-bit float, with strides of 1 or 2 in planes.
std::optional<cuda::DepthwiseVolumeSizes> depthwise_volume_sizes(ConvPass pass, const OpCall& call,
                                                                 llvm::ArrayRef<Type> results);

}  // namespace plimsoll
