#include "kernels/cpu/resize/resample.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/row_math.h"

#include <algorithm>

namespace plimsoll::cpu {

// body(outer index, first and last column): whole outer slices when there are several, else pieces of the
// columns.
template <typename Body>
static void for_each_slice(const AxisTaps& axis, int64_t outer, int64_t inner, Body&& body) {
  const int64_t work = axis.out * axis.taps;
  if (outer > 1)
    parallel_tasks(outer, outer * inner * work, [&](int64_t o) { body(o, int64_t{0}, inner); });
  else if (outer == 1)
    parallel_ranges(inner, work, [&](int64_t begin, int64_t end) { body(int64_t{0}, begin, end); });
}

// Along the last axis a result is one number, and a call for each would cost more than the sum.
static void resample_row(const AxisTaps& axis, float* y, const float* x) {
  for (int64_t k = 0; k < axis.out; ++k) {
    float sum = 0;
    for (int64_t t = k * axis.taps; t < (k + 1) * axis.taps; ++t) sum += x[axis.index[t]] * axis.weight[t];
    y[k] = sum;
  }
}

static void resample_row_grad(const AxisTaps& axis, float* dx, const float* dy) {
  std::fill_n(dx, axis.in, 0.0f);
  for (int64_t k = 0; k < axis.out; ++k)
    for (int64_t t = k * axis.taps; t < (k + 1) * axis.taps; ++t) dx[axis.index[t]] += dy[k] * axis.weight[t];
}

void resample_axis(const AxisTaps& axis, int64_t outer, int64_t inner, float* y, const float* x) {
  if (inner == 1)
    return parallel_tasks(outer, outer * axis.out * axis.taps,
                          [&](int64_t o) { resample_row(axis, y + o * axis.out, x + o * axis.in); });
  for_each_slice(axis, outer, inner, [&](int64_t o, int64_t begin, int64_t end) {
    for (int64_t k = 0; k < axis.out; ++k) {
      float* to = y + (o * axis.out + k) * inner;
      std::fill(to + begin, to + end, 0.0f);
      for (int64_t t = k * axis.taps; t < (k + 1) * axis.taps; ++t)
        add_scaled_to(to + begin, x + (o * axis.in + axis.index[t]) * inner + begin, axis.weight[t], end - begin);
    }
  });
}

void resample_axis_grad(const AxisTaps& axis, int64_t outer, int64_t inner, float* dx, const float* dy) {
  if (inner == 1)
    return parallel_tasks(outer, outer * axis.out * axis.taps,
                          [&](int64_t o) { resample_row_grad(axis, dx + o * axis.in, dy + o * axis.out); });
  for_each_slice(axis, outer, inner, [&](int64_t o, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < axis.in; ++i) {
      float* to = dx + (o * axis.in + i) * inner;
      std::fill(to + begin, to + end, 0.0f);
    }
    for (int64_t k = 0; k < axis.out; ++k)
      for (int64_t t = k * axis.taps; t < (k + 1) * axis.taps; ++t)
        add_scaled_to(dx + (o * axis.in + axis.index[t]) * inner + begin, dy + (o * axis.out + k) * inner + begin,
                      axis.weight[t], end - begin);
  });
}

}  // namespace plimsoll::cpu
