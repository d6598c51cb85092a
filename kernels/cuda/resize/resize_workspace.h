#pragma once

// The tables that the resize kernels keep in their workspace. No CUDA here: plans are made where there is none.

#include <cstdint>

namespace plimsoll::cuda {

inline constexpr int max_resized_axes = 3, max_taps = 4;

// The elements of x's axis that one result element is the weighted sum of; those it does not need weigh 0.
struct alignas(16) AxisTaps {
  int32_t index[max_taps];
  float weight[max_taps];
};

// The same as the gradient reads it: the result element gives weight[i] of itself to element first + i. `first` grows
// along the axis.
struct Spread {
  int32_t first;
  float weight[max_taps];
};
static_assert(sizeof(Spread) <= sizeof(AxisTaps), "either table takes the place of the other");

// A row for every result element of every axis, and for the gradient behind them where the rows start that give to an
// element of x. The resampled axes have so many elements together; the others count one each.
constexpr int64_t resize_workspace_bytes(int64_t in_elements, int64_t out_elements) {
  return (out_elements + max_resized_axes) * static_cast<int64_t>(sizeof(AxisTaps)) +
         (in_elements + 2 * max_resized_axes) * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace plimsoll::cuda
