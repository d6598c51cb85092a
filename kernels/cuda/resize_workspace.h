#pragma once

// What the resize kernels keep in their workspace. No CUDA here: plans are made where there is none.

#include <cstdint>

namespace plimsoll::cuda {

inline constexpr int max_taps = 4;

// The elements of x's axis that one result element is the weighted sum of; those it does not need weigh 0.
struct alignas(16) AxisTaps {
  int32_t index[max_taps];
  float weight[max_taps];
};

// A row for every result element of every resampled axis, these being as many together.
constexpr int64_t resize_workspace_bytes(int64_t axis_elements) {
  return axis_elements * static_cast<int64_t>(sizeof(AxisTaps));
}

}  // namespace plimsoll::cuda
