#include "kernels/cuda/resize/resize_taps.cuh"

#include <algorithm>
#include <cmath>

// Fills the tables of resize and resize_grad: a few bytes for each element of a resampled axis. The taps of each axis
// are computed once, in double and operation by operation as on the host: a tie between two neighbours must fall the
// same way.

namespace plimsoll::cuda {
namespace {

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

// An axis of one element gives it whole.
__device__ AxisTaps taps_of(const ResizeShape& shape, const ResizedAxis& axis, int64_t k) {
  if (axis.in == 1) return {{0}, {1.0f}};
  const double at = position_of(axis, k), low = floor(at), fraction = at - low;
  const bool nearest = shape.interpolation == Interpolation::Nearest,
             cubic = shape.interpolation == Interpolation::Cubic;
  const int count = nearest ? 1 : cubic ? 4 : 2;
  const double first = nearest ? nearest_of(shape.rounding, at) : low - (cubic ? 1 : 0);
  AxisTaps taps{};
  double weights[max_taps] = {1}, sum = 0;
#pragma unroll
  for (int i = 0; i < max_taps; ++i) {
    if (i >= count) continue;
    const double index = first + i;
    if (!nearest) weights[i] = cubic ? cubic_weight(shape.cubic_a, i - 1 - fraction) : i == 0 ? 1 - fraction : fraction;
    if (shape.exclude_outside && !nearest && (index < 0 || index >= static_cast<double>(axis.in))) weights[i] = 0;
    sum += weights[i];
    taps.index[i] = static_cast<int32_t>(fmin(fmax(index, 0.0), static_cast<double>(axis.in - 1)));
  }
#pragma unroll
  for (int i = 0; i < max_taps; ++i)
    if (i < count)
      taps.weight[i] = static_cast<float>(shape.exclude_outside && !nearest ? weights[i] / sum : weights[i]);
  return taps;
}

// Taps that the edge holds back fall together.
__device__ Spread spread_of(const AxisTaps& taps) {
  Spread spread{taps.index[0], {}};
#pragma unroll
  for (int t = 0; t < max_taps; ++t)
#pragma unroll
    for (int i = 0; i < max_taps; ++i)
      if (taps.index[t] - spread.first == i) spread.weight[i] += taps.weight[t];
  return spread;
}

// blockIdx.y is the axis.
__global__ void __launch_bounds__(resize_threads)
    taps_kernel(const __grid_constant__ ResizeShape shape, const __grid_constant__ TapTables tables) {
  const ResizedAxis axis = shape.axes[blockIdx.y];
  const int64_t k = int64_t{blockIdx.x} * resize_threads + threadIdx.x;
  if (k < axis.out) tables.taps[blockIdx.y][k] = taps_of(shape, axis, k);
}

// Thread k, one behind the last as well, also writes the starts from those of the row before it up to its own.
__global__ void __launch_bounds__(resize_threads)
    spreads_kernel(const __grid_constant__ ResizeShape shape, const __grid_constant__ TapTables tables) {
  const ResizedAxis axis = shape.axes[blockIdx.y];
  const int64_t k = int64_t{blockIdx.x} * resize_threads + threadIdx.x;
  if (k > axis.out) return;
  int64_t first = axis.in;
  if (k < axis.out) {
    const Spread spread = spread_of(taps_of(shape, axis, k));
    tables.spreads[blockIdx.y][k] = spread;
    first = spread.first;
  }
  const int64_t before = k == 0 ? -1 : taps_of(shape, axis, k - 1).index[0];
  for (int64_t i = before + 1; i <= first; ++i) tables.starts[blockIdx.y][i] = static_cast<int32_t>(k);
}

// Threads of x for the longest axis and `more`.
dim3 blocks_of_axes(const ResizeShape& shape, int64_t more) {
  const int64_t longest = std::max({shape.axes[0].out, shape.axes[1].out, shape.axes[2].out});
  return {static_cast<unsigned>(divide_up(longest + more, resize_threads)), max_resized_axes};
}

}  // namespace

TapTables::TapTables(const ResizeShape& shape, void* workspace) {
  auto* rows = static_cast<AxisTaps*>(workspace);
  auto* start = reinterpret_cast<int32_t*>(rows + shape.axes[0].out + shape.axes[1].out + shape.axes[2].out);
  for (int d = 0; d < max_resized_axes; ++d) {
    taps[d] = rows;
    spreads[d] = reinterpret_cast<Spread*>(rows);
    starts[d] = start;
    rows += shape.axes[d].out;
    start += shape.axes[d].in + 1;
  }
}

cudaError_t fill_taps(const ResizeShape& shape, const TapTables& tables, cudaStream_t stream) {
  taps_kernel<<<blocks_of_axes(shape, 0), resize_threads, 0, stream>>>(shape, tables);
  return cudaGetLastError();
}

cudaError_t fill_spreads(const ResizeShape& shape, const TapTables& tables, cudaStream_t stream) {
  spreads_kernel<<<blocks_of_axes(shape, 1), resize_threads, 0, stream>>>(shape, tables);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
