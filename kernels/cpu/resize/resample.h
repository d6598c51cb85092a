#pragma once

// Resampling along one axis of [outer, length, inner]: every result is a weighted sum of a few elements.

#include <cstdint>
#include <vector>

namespace plimsoll::cpu {

// `taps` (index, weight) pairs for each of `out` results; unused ones have weight 0.
struct AxisTaps {
  int64_t in = 0, out = 0, taps = 0;
  std::vector<int64_t> index;
  std::vector<float> weight;
};

void resample_axis(const AxisTaps& axis, int64_t outer, int64_t inner, float* y, const float* x);
// dx [outer, in, inner] from dy [outer, out, inner].
void resample_axis_grad(const AxisTaps& axis, int64_t outer, int64_t inner, float* dx, const float* dy);

}  // namespace plimsoll::cpu
