#include "kernels/cuda/pool/pool.cuh"

// Serves average_pool and average_pool_grad. Every element is written once; what overlapping windows read again comes
// from the caches.

namespace plimsoll::cuda {
namespace {

__device__ float counted(const PoolAxis& axis, int32_t position, bool padded) {
  const Taps taps(axis, position);
  return static_cast<float>(padded ? taps.end_padded : taps.end - taps.first);
}

template <int n, typename T>
__global__ void __launch_bounds__(block_threads)
    average_pool_kernel(PoolPlanes pool, bool padded, T* y, const T* x, int32_t accesses) {
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= accesses) return;
  const PoolPlace place(pool, PoolSide::Out, n, number);
  float sums[n] = {};
  for_window<n>(pool, place, x, [&](const Vector<T, n>& values, int32_t) {
#pragma unroll
    for (int i = 0; i < n; ++i) sums[i] += widen(values.at[i]);
  });
  const float count = counted(pool.axes[0], place.a, padded) * counted(pool.axes[1], place.b, padded) *
                      counted(pool.axes[2], place.c, padded);
  Vector<T, n> values;
#pragma unroll
  for (int i = 0; i < n; ++i) values.at[i] = narrow<T>(count > 0.0f ? sums[i] / count : 0.0f);
  store_vector(y + int64_t{number} * n, values);
}

template <int n, typename T>
__global__ void __launch_bounds__(block_threads)
    average_pool_grad_kernel(PoolPlanes pool, bool padded, T* dx, const T* dy, int32_t accesses) {
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= accesses) return;
  const PoolPlace place(pool, PoolSide::In, n, number);
  float sums[n] = {};
  for_window_rows_over(pool, place, [&](int32_t a, int32_t b, const Positions& over, int32_t) {
    const T* windows = dy + pool.element(PoolSide::Out, place.plane, a, b, 0) + place.lane;
    const float count_row = counted(pool.axes[0], a, padded) * counted(pool.axes[1], b, padded);
    for (int32_t c = over.first; c <= over.last; ++c) {
      if (over.tap(pool.axes[2], c) < 0) continue;
      const Vector<T, n> grads = load_vector<n>(windows + int64_t{c} * pool.lanes);
      const float count = count_row * counted(pool.axes[2], c, padded);
#pragma unroll
      for (int i = 0; i < n; ++i) sums[i] += widen(grads.at[i]) / count;
    }
  });
  Vector<T, n> values;
#pragma unroll
  for (int i = 0; i < n; ++i) values.at[i] = narrow<T>(sums[i]);
  store_vector(dx + int64_t{number} * n, values);
}

}  // namespace

cudaError_t average_pool(const PoolShape& shape, Scalar type, bool include_padding, void* y, const void* x,
                         cudaStream_t stream) {
  return over_accesses(shape, PoolSide::Out, type, [&]<typename T>(T*, auto n, int32_t accesses, unsigned blocks) {
    average_pool_kernel<n()><<<blocks, block_threads, 0, stream>>>(
        PoolPlanes(shape, n), include_padding, static_cast<T*>(y), static_cast<const T*>(x), accesses);
  });
}

cudaError_t average_pool_grad(const PoolShape& shape, Scalar type, bool include_padding, void* dx, const void* dy,
                              cudaStream_t stream) {
  return over_accesses(shape, PoolSide::In, type, [&]<typename T>(T*, auto n, int32_t accesses, unsigned blocks) {
    average_pool_grad_kernel<n()><<<blocks, block_threads, 0, stream>>>(
        PoolPlanes(shape, n), include_padding, static_cast<T*>(dx), static_cast<const T*>(dy), accesses);
  });
}

}  // namespace plimsoll::cuda
