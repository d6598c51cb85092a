#include "kernels/cuda/pool/pool.cuh"

#include <cmath>

// Serves max_pool, max_pool_with_indices and max_pool_grad. x is read and y written once. For the gradient every place
// of x gathers from the windows that cover it and chose it. Traffic: a byte per window, dy and dx; overlapping windows
// read the caches. Of images with the usual windows a thread takes a square of places as wide as the stride, which a
// few windows cover, each loaded once.

namespace plimsoll::cuda {
namespace {

// The choice of the window over n lanes: the first of the largest, NaN being larger than anything; no tap
// where it meets no input.
template <int n>
struct Maxima {
  float value[n];
  int32_t tap[n];
};

template <int n, typename T>
__device__ Maxima<n> window_maxima(const PoolPlanes& pool, const PoolPlace& place, const T* x) {
  Maxima<n> best;
  bool is_first = true;
#pragma unroll
  for (int i = 0; i < n; ++i) best.value[i] = -INFINITY, best.tap[i] = -1;
  for_window<n>(pool, place, x, [&](const Vector<T, n>& values, int32_t tap) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float value = widen(values.at[i]);
      const bool is_larger = !(value <= best.value[i]) && best.value[i] == best.value[i];
      if (is_larger) best.value[i] = value;
      if (is_larger || is_first) best.tap[i] = tap;
    }
    is_first = false;
  });
  return best;
}

template <int n, typename T>
__global__ void __launch_bounds__(block_threads)
    max_pool_kernel(PoolPlanes pool, T* y, uint8_t* choices, const T* x, int32_t accesses) {
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= accesses) return;
  const Maxima<n> best = window_maxima<n>(pool, PoolPlace(pool, PoolSide::Out, n, number), x);
  Vector<T, n> values;
  Vector<uint8_t, n> chosen;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    values.at[i] = narrow<T>(best.value[i]);
    chosen.at[i] = static_cast<uint8_t>(best.tap[i]);  // 255 for -1
  }
  if (y) store_vector(y + int64_t{number} * n, values);
  if (choices) store_vector(choices + int64_t{number} * n, chosen);
}

// Channels first. The first element of a plane stands at plane * size in either order of columns.
template <typename T>
__global__ void __launch_bounds__(block_threads)
    max_pool_indices_kernel(PoolPlanes pool, T* y, int64_t* indices, bool columns_first, const T* x, int32_t accesses) {
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= accesses) return;
  const PoolPlace place(pool, PoolSide::Out, 1, number);
  const Maxima<1> best = window_maxima<1>(pool, place, x);
  y[number] = narrow<T>(best.value[0]);
  indices[number] = -1;
  if (best.tap[0] < 0) return;
  const PoolAxis &a = pool.axes[0], &b = pool.axes[1], &c = pool.axes[2];
  const int32_t tap = best.tap[0], row = tap / c.kernel;
  const int32_t in_a = Taps(a, place.a).start + row / b.kernel * a.dilation;
  const int32_t in_b = Taps(b, place.b).start + row % b.kernel * b.dilation;
  const int32_t in_c = Taps(c, place.c).start + tap % c.kernel * c.dilation;
  const int32_t plane = pool.element(PoolSide::In, place.plane, 0, 0, 0);
  indices[number] = plane + (columns_first ? (in_c * b.in + in_b) * a.in + in_a : (in_a * b.in + in_b) * c.in + in_c);
}

template <int n, typename T>
__global__ void __launch_bounds__(block_threads)
    max_pool_grad_kernel(PoolPlanes pool, T* dx, const uint8_t* choices, const T* dy, int32_t accesses) {
  constexpr int in_flight = 2;
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= accesses) return;
  const PoolPlace place(pool, PoolSide::In, n, number);
  float sums[n] = {};
  for_window_rows_over(pool, place, [&](int32_t a, int32_t b, const Positions& over, int32_t row) {
    const int32_t windows = pool.element(PoolSide::Out, place.plane, a, b, 0) + place.lane;
    for (int32_t c = over.first; c <= over.last; c += in_flight) {
      Vector<uint8_t, n> chosen[in_flight];
      Vector<T, n> grads[in_flight];
      int32_t tap[in_flight];
#pragma unroll
      for (int k = 0; k < in_flight; ++k) {
        tap[k] = c + k <= over.last ? over.tap(pool.axes[2], c + k) : -1;
        if (tap[k] < 0) continue;
        chosen[k] = load_vector<n>(choices + windows + (c + k) * pool.lanes);
        grads[k] = load_vector<n>(dy + windows + (c + k) * pool.lanes);
      }
#pragma unroll
      for (int k = 0; k < in_flight; ++k) {
        if (tap[k] < 0) continue;
#pragma unroll
        for (int i = 0; i < n; ++i)
          if (chosen[k].at[i] == row + tap[k]) sums[i] += widen(grads[k].at[i]);
      }
    }
  });
  Vector<T, n> values;
#pragma unroll
  for (int i = 0; i < n; ++i) values.at[i] = narrow<T>(sums[i]);
  store_vector(dx + int64_t{number} * n, values);
}

template <int kernel, int stride, int n, typename T>
__global__ void __launch_bounds__(block_threads)
    max_pool_grad_squares_kernel(PoolSquares squares, T* dx, const uint8_t* choices, const T* dy) {
  constexpr int reach = (kernel - 1) / stride;
  const PoolPlanes& pool = squares.pool;
  const PoolAxis &b = pool.axes[1], &c = pool.axes[2];
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= squares.count) return;
  const auto [plane, row, column, lane] = PoolSquare(squares, n, number);

  Vector<uint8_t, n> chosen[reach + 1][reach + 1];
  Vector<T, n> grads[reach + 1][reach + 1];
  bool is_there[reach + 1][reach + 1];
#pragma unroll
  for (int i = 0; i <= reach; ++i)
#pragma unroll
    for (int j = 0; j <= reach; ++j) {
      const int32_t at_b = row - reach + i, at_c = column - reach + j;
      is_there[i][j] = at_b >= 0 && at_b < b.out && at_c >= 0 && at_c < c.out;
      if (!is_there[i][j]) continue;
      const int32_t window = pool.element(PoolSide::Out, plane, 0, at_b, at_c) + lane;
      chosen[i][j] = load_vector<n>(choices + window);
      grads[i][j] = load_vector<n>(dy + window);
    }
#pragma unroll
  for (int p = 0; p < stride; ++p)
#pragma unroll
    for (int q = 0; q < stride; ++q) {
      const int32_t in_b = row * stride + p - b.pad_begin, in_c = column * stride + q - c.pad_begin;
      if (in_b < 0 || in_b >= b.in || in_c < 0 || in_c >= c.in) continue;
      float sums[n] = {};
#pragma unroll
      for (int i = 0; i <= reach; ++i)
#pragma unroll
        for (int j = 0; j <= reach; ++j) {
          const int tap_b = p + (reach - i) * stride, tap_c = q + (reach - j) * stride;
          if (tap_b >= kernel || tap_c >= kernel || !is_there[i][j]) continue;
#pragma unroll
          for (int l = 0; l < n; ++l)
            if (chosen[i][j].at[l] == tap_b * kernel + tap_c) sums[l] += widen(grads[i][j].at[l]);
        }
      Vector<T, n> values;
#pragma unroll
      for (int l = 0; l < n; ++l) values.at[l] = narrow<T>(sums[l]);
      store_vector(dx + pool.element(PoolSide::In, plane, 0, in_b, in_c) + lane, values);
    }
}

template <int kernel, int stride, int n, typename T>
void launch_squares(const PoolShape& shape, T* dx, const uint8_t* choices, const T* dy, cudaStream_t stream) {
  const PoolSquares squares = gradient_squares(shape, n);
  max_pool_grad_squares_kernel<kernel, stride, n>
      <<<blocks_for(squares.count), block_threads, 0, stream>>>(squares, dx, choices, dy);
}

}  // namespace

cudaError_t max_pool(const PoolShape& shape, Scalar type, void* y, uint8_t* choices, const void* x,
                     cudaStream_t stream) {
  return over_accesses(shape, PoolSide::Out, type, [&]<typename T>(T*, auto n, int32_t accesses, unsigned blocks) {
    max_pool_kernel<n()><<<blocks, block_threads, 0, stream>>>(PoolPlanes(shape, n), static_cast<T*>(y), choices,
                                                               static_cast<const T*>(x), accesses);
  });
}

cudaError_t max_pool_with_indices(const PoolShape& shape, Scalar type, void* y, int64_t* indices, bool columns_first,
                                  const void* x, cudaStream_t stream) {
  return over_accesses(shape, PoolSide::Out, type, [&]<typename T>(T*, auto n, int32_t accesses, unsigned blocks) {
    if constexpr (n() == 1)
      max_pool_indices_kernel<<<blocks, block_threads, 0, stream>>>(PoolPlanes(shape, n), static_cast<T*>(y), indices,
                                                                    columns_first, static_cast<const T*>(x), accesses);
  });
}

cudaError_t max_pool_grad(const PoolShape& shape, Scalar type, void* dx, const uint8_t* choices, const void* dy,
                          cudaStream_t stream) {
  return over_accesses(shape, PoolSide::In, type, [&]<typename T>(T*, auto n, int32_t accesses, unsigned blocks) {
    T* to = static_cast<T*>(dx);
    const T* from = static_cast<const T*>(dy);
    if (has_windows(shape, 3, 2)) return launch_squares<3, 2, n()>(shape, to, choices, from, stream);
    if (has_windows(shape, 2, 2)) return launch_squares<2, 2, n()>(shape, to, choices, from, stream);
    max_pool_grad_kernel<n()><<<blocks, block_threads, 0, stream>>>(PoolPlanes(shape, n), to, choices, from, accesses);
  });
}

}  // namespace plimsoll::cuda
