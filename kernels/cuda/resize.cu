#include "kernels/cuda/resize.h"

#include "kernels/cuda/rows.cuh"

#include <cmath>

// A thread an element of the result. Positions are computed in double, operation by operation as on the host: a tie
// between two neighbours must fall the same way.

namespace plimsoll::cuda {
namespace {

constexpr int block_threads = 256, max_taps = 4;

struct Taps {
  int count;
  int64_t index[max_taps];
  float weight[max_taps];
};

__device__ double position_of(const ResizedAxis& axis, int64_t k) {
  return axis.offset + (static_cast<double>(k) + axis.shift) * axis.factor / axis.divisor - axis.back;
}

__device__ double nearest_of(NearestRounding rounding, double at) {
  switch (rounding) {
    case NearestRounding::Floor: return floor(at);
    case NearestRounding::Ceil: return ceil(at);
    case NearestRounding::PreferCeil: return floor(at + 0.5);
    default: return ceil(at - 0.5);
  }
}

// The cubic convolution kernel (Keys 1981) at `distance` from the centre.
__device__ double cubic_weight(double a, double distance) {
  const double d = fabs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

__device__ Taps taps_of(const ResizeShape& shape, const ResizedAxis& axis, int64_t k) {
  const double at = position_of(axis, k);
  Taps taps{1, {}, {1.0f}};
  if (shape.interpolation == Interpolation::Nearest) {
    taps.index[0] = static_cast<int64_t>(nearest_of(shape.rounding, at));
  } else {
    const bool cubic = shape.interpolation == Interpolation::Cubic;
    const double low = floor(at), fraction = at - low;
    taps.count = cubic ? 4 : 2;
    double weights[max_taps], sum = 0;
#pragma unroll
    for (int i = 0; i < max_taps; ++i) {
      if (i >= taps.count) break;
      taps.index[i] = static_cast<int64_t>(low) + i - (cubic ? 1 : 0);
      weights[i] = cubic ? cubic_weight(shape.cubic_a, i - 1 - fraction) : i == 0 ? 1 - fraction : fraction;
      if (shape.exclude_outside && (taps.index[i] < 0 || taps.index[i] >= axis.in)) weights[i] = 0;
      sum += weights[i];
    }
#pragma unroll
    for (int i = 0; i < max_taps; ++i)
      if (i < taps.count) taps.weight[i] = static_cast<float>(shape.exclude_outside ? weights[i] / sum : weights[i]);
  }
#pragma unroll
  for (int i = 0; i < max_taps; ++i)
    if (i < taps.count) taps.index[i] = taps.index[i] < 0 ? 0 : taps.index[i] < axis.in ? taps.index[i] : axis.in - 1;
  return taps;
}

// An element by its indices: outer, then each axis and what stands inside of it.
struct Place {
  int64_t outer, axis[max_resized_axes], inner[max_resized_axes];
};

enum class Side : uint8_t { Input, Output };

__device__ int64_t size_of(const ResizedAxis& axis, Side side) { return side == Side::Input ? axis.in : axis.out; }

__device__ Place place_of(const ResizeShape& shape, Side side, int64_t element) {
  Place place;
  for (int d = max_resized_axes - 1; d >= 0; --d) {
    place.inner[d] = element % shape.inner[d];
    element /= shape.inner[d];
    place.axis[d] = element % size_of(shape.axes[d], side);
    element /= size_of(shape.axes[d], side);
  }
  place.outer = element;
  return place;
}

// The same place on the other side, at these indices of the axes.
__device__ int64_t element_of(const ResizeShape& shape, Side side, const Place& place, int64_t a, int64_t b,
                              int64_t c) {
  const int64_t at[max_resized_axes] = {a, b, c};
  int64_t element = place.outer;
#pragma unroll
  for (int d = 0; d < max_resized_axes; ++d)
    element = (element * size_of(shape.axes[d], side) + at[d]) * shape.inner[d] + place.inner[d];
  return element;
}

__device__ Taps axis_taps(const ResizeShape& shape, int d, int64_t k) {
  return d < shape.used ? taps_of(shape, shape.axes[d], k) : Taps{1, {k}, {1.0f}};
}

template <typename T>
__global__ void __launch_bounds__(block_threads) resize_kernel(ResizeShape shape, T* y, const T* x, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= elements) return;
  const Place place = place_of(shape, Side::Output, i);
  const Taps a = axis_taps(shape, 0, place.axis[0]), b = axis_taps(shape, 1, place.axis[1]);
  const Taps c = axis_taps(shape, 2, place.axis[2]);
  float sum = 0.0f;
  for (int p = 0; p < a.count; ++p)
    for (int q = 0; q < b.count; ++q)
      for (int r = 0; r < c.count; ++r)
        sum += a.weight[p] * b.weight[q] * c.weight[r] *
               widen(x[element_of(shape, Side::Input, place, a.index[p], b.index[q], c.index[r])]);
  y[i] = narrow<T>(sum);
}

// Result elements from first to last, among them all that read element i of x along the axis: those whose position is
// within two of it, and at the edges all beyond.
struct Readers {
  int64_t first, last;

  __device__ Readers(const ResizeShape& shape, int d, int64_t i) : first(0), last(shape.axes[d].out - 1) {
    const ResizedAxis& axis = shape.axes[d];
    if (d >= shape.used) {
      first = last = i;
      return;
    }
    if (axis.factor == 0) return;
    const double step = axis.factor / axis.divisor, start = position_of(axis, 0);
    if (i > 0) first = max(first, static_cast<int64_t>(floor((static_cast<double>(i) - 2 - start) / step)) - 1);
    if (i < axis.in - 1) last = min(last, static_cast<int64_t>(ceil((static_cast<double>(i) + 2 - start) / step)) + 1);
  }
};

// What result element k takes of element i of x along the axis.
__device__ float weight_of(const ResizeShape& shape, int d, int64_t k, int64_t i) {
  const Taps taps = axis_taps(shape, d, k);
  float weight = 0.0f;
#pragma unroll
  for (int t = 0; t < max_taps; ++t)
    if (t < taps.count && taps.index[t] == i) weight += taps.weight[t];
  return weight;
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    resize_grad_kernel(ResizeShape shape, T* dx, const T* dy, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= elements) return;
  const Place place = place_of(shape, Side::Input, i);
  const Readers a(shape, 0, place.axis[0]), b(shape, 1, place.axis[1]), c(shape, 2, place.axis[2]);
  float sum = 0.0f;
  for (int64_t p = a.first; p <= a.last; ++p) {
    const float outer_weight = weight_of(shape, 0, p, place.axis[0]);
    if (outer_weight == 0.0f) continue;
    for (int64_t q = b.first; q <= b.last; ++q) {
      const float weight = outer_weight * weight_of(shape, 1, q, place.axis[1]);
      if (weight == 0.0f) continue;
      for (int64_t r = c.first; r <= c.last; ++r) {
        const float whole = weight * weight_of(shape, 2, r, place.axis[2]);
        if (whole != 0.0f) sum += whole * widen(dy[element_of(shape, Side::Output, place, p, q, r)]);
      }
    }
  }
  dx[i] = narrow<T>(sum);
}

int64_t elements_of(const ResizeShape& shape, bool input) {
  int64_t elements = shape.outer;
  for (int d = 0; d < max_resized_axes; ++d)
    elements *= (input ? shape.axes[d].in : shape.axes[d].out) * shape.inner[d];
  return elements;
}

}  // namespace

cudaError_t resize(const ResizeShape& shape, Scalar type, void* y, const void* x, cudaStream_t stream) {
  const int64_t elements = elements_of(shape, false);
  if (elements == 0) return cudaSuccess;
  return with_f32_math(type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    resize_kernel<<<static_cast<unsigned>(divide_up(elements, block_threads)), block_threads, 0, stream>>>(
        shape, static_cast<T*>(y), static_cast<const T*>(x), elements);
    return cudaGetLastError();
  });
}

cudaError_t resize_grad(const ResizeShape& shape, Scalar type, void* dx, const void* dy, cudaStream_t stream) {
  const int64_t elements = elements_of(shape, true);
  if (elements == 0) return cudaSuccess;
  return with_f32_math(type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    resize_grad_kernel<<<static_cast<unsigned>(divide_up(elements, block_threads)), block_threads, 0, stream>>>(
        shape, static_cast<T*>(dx), static_cast<const T*>(dy), elements);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
