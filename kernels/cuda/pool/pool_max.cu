#include "kernels/cuda/pool/pool.cuh"

#include <cmath>

// Serves max_pool, max_pool_with_indices and max_pool_grad. x is read and y written once. For the gradient every place
// of x gathers from the windows that cover it and chose it. Traffic: a byte per window, dy and dx; overlapping windows
// read the caches.

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
    max_pool_grad_kernel<n()><<<blocks, block_threads, 0, stream>>>(PoolPlanes(shape, n), static_cast<T*>(dx), choices,
                                                                    static_cast<const T*>(dy), accesses);
  });
}

}  // namespace plimsoll::cuda
