#pragma once

// Statistics of some elements of a channel, which merge as in Chan, Golub and LeVeque 1979.

namespace plimsoll::cuda {

struct Moments {
  float count, mean, squares;  // squares: summed squared differences from the mean
};

struct Merge {
  __device__ Moments operator()(const Moments& a, const Moments& b) const {
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const float difference = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + difference * share, a.squares + b.squares + difference * difference * a.count * share};
  }
};

// Sums differences from a pivot, one of the elements, and their squares. The pivot being one of them, (pivot - mean)^2
// belongs to the sum of squares, and what cancels is no more than the count of elements times that, however far away
// the pivot is.
struct PivotSums {
  float pivot = 0, sum = 0, squares = 0;

  __device__ void add(float element) {
    const float difference = element - pivot;
    sum += difference;
    squares += difference * difference;
  }
  __device__ Moments moments(float count) const {
    if (count == 0.0f) return {0, 0, 0};
    const float shift = sum / count, around_mean = squares - sum * shift;
    return {count, pivot + shift, around_mean < 0.0f ? 0.0f : around_mean};
  }
};

}  // namespace plimsoll::cuda
