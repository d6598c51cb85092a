#pragma once

// A sum of exponentials that no element overflows: the largest element so far and the sum relative to it (Milakov and
// Gimelshein 2018).

#include "kernels/cuda/common/rows.cuh"

#include <cmath>

namespace plimsoll::cuda {

inline constexpr float log2_e = 1.44269504f;

// sum: of exp(x - largest)
struct RunningSum {
  float largest, sum;

  __device__ static RunningSum none() { return {-INFINITY, 0.0f}; }
  __device__ float log() const { return largest + logf(sum); }
};

__device__ inline float rescaled(float sum, float from, float to) {
  return sum == 0.0f ? 0.0f : sum * exp2f((from - to) * log2_e);
}

struct MergeSums {
  __device__ RunningSum operator()(const RunningSum& a, const RunningSum& b) const {
    const float largest = fmaxf(a.largest, b.largest);
    return {largest, rescaled(a.sum, a.largest, largest) + rescaled(b.sum, b.largest, largest)};
  }
};

template <typename T, int n>
__device__ RunningSum add_elements(RunningSum so_far, const Vector<T, n>& elements) {
  float largest = so_far.largest;
#pragma unroll
  for (int i = 0; i < n; ++i) largest = fmaxf(largest, widen(elements.at[i]));
  if (largest == -INFINITY) return so_far;
  float sum = rescaled(so_far.sum, so_far.largest, largest);
#pragma unroll
  for (int i = 0; i < n; ++i) sum += exp2f((widen(elements.at[i]) - largest) * log2_e);
  return {largest, sum};
}

}  // namespace plimsoll::cuda
