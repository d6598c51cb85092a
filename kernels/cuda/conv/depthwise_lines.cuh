#pragma once

// What depthwise convolutions along lines share on the device.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/conv/depthwise_lines.h"

namespace plimsoll::cuda {

// How far the next one is in both dimensions, where one below another is `down` away, and one beside it `across`.
template <typename Offset>
struct LineSteps {
  Offset along, beside;

  __device__ LineSteps(int along_dimension, Offset down, Offset across)
      : along(along_dimension == 0 ? down : across), beside(along_dimension == 0 ? across : down) {}
};

// From a place of as many floats' alignment.
template <int length>
__device__ void load_floats(float (&to)[length], const float* from) {
  const Packed<float, length> loaded = load_packed<length>(from);
#pragma unroll
  for (int k = 0; k < length; ++k) to[k] = loaded[k];
}

// Calls visit with the channels of a thread and the taps of a piece as constants.
template <typename Visit>
cudaError_t with_lanes_and_taps(const DepthwiseLanes& p, Visit visit) {
  constexpr auto& helds = DepthwiseLanes::helds;
  const auto with_held = [&](auto length) {
    switch (p.held) {
      case helds[0]: return visit(length, std::integral_constant<int, helds[0]>());
      case helds[1]: return visit(length, std::integral_constant<int, helds[1]>());
      case helds[2]: return visit(length, std::integral_constant<int, helds[2]>());
      default: return visit(length, std::integral_constant<int, helds[3]>());
    }
  };
  switch (p.length) {
    case 4: return with_held(std::integral_constant<int, 4>());
    case 2: return with_held(std::integral_constant<int, 2>());
    default: return with_held(std::integral_constant<int, 1>());
  }
}

}  // namespace plimsoll::cuda
