#pragma once

// What cuDNN's convolutions take, as measured: by groups, taps, channels and dilations.

#include "runtime/kernels/conv.h"

namespace plimsoll {

constexpr int64_t whole_vector = 8;  // 16-bit floats of 16 bytes

constexpr bool has_bias(ConvPass pass, const OpCall& call) {
  return pass != ConvPass::WeightGradient && call.count() > 2 && call.has(2);
}

// What a launch of its own takes that reads and writes the result; microseconds, as all times here.
double bias_us(const Type& result, const DeviceDescription& device);

// 0, which leaves it to the planner's roofline, for images of a few channels, which other kernels take.
double cudnn_convolution_us(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results,
                            const DeviceDescription& device);

}  // namespace plimsoll
