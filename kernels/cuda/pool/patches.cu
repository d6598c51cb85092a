#include "kernels/cuda/pool/patches.h"

#include "kernels/cuda/pool/pool.cuh"

// Every element is written once, in accesses as wide as channels allow; what patches read again of an image comes from
// the caches.

namespace plimsoll::cuda {
namespace {

// Where patches have the taps of a position.
struct Patches {
  int32_t taps;
  int64_t tap_step, plane_step;  // from a tap to the next; of a plane beyond its positions

  explicit Patches(const PoolShape& shape) : taps(shape.kernel[0] * shape.kernel[1] * shape.kernel[2]) {
    const int64_t positions = int64_t{shape.out[0]} * shape.out[1] * shape.out[2];
    tap_step = shape.channels_last ? shape.channels : positions;
    plane_step = shape.channels_last ? 0 : positions * (taps - 1);
    taps = shape.channels_last ? taps : 1;  // of an element's place
  }
  __device__ int64_t at(const PoolPlanes& pool, int32_t plane, int32_t a, int32_t b, int32_t c, int32_t lane) const {
    return int64_t{pool.element(PoolSide::Out, plane, a, b, c)} * taps + plane * plane_step + lane;
  }
};

template <int n, typename T>
__global__ void __launch_bounds__(block_threads)
    unfold_kernel(PoolPlanes pool, Patches patches, T* y, const T* x, int32_t accesses) {
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= accesses) return;
  const PoolPlace place(pool, PoolSide::Out, n, number);
  const PoolAxis &a = pool.axes[0], &b = pool.axes[1], &c = pool.axes[2];
  T* to = y + patches.at(pool, place.plane, place.a, place.b, place.c, place.lane);
  const int32_t first = place.c * c.stride - c.pad_begin;
  for (int32_t i = 0; i < a.kernel; ++i) {
    const int32_t depth = place.a * a.stride - a.pad_begin + i * a.dilation;
    for (int32_t j = 0; j < b.kernel; ++j) {
      const int32_t row = place.b * b.stride - b.pad_begin + j * b.dilation;
      const bool is_inside = depth >= 0 && depth < a.in && row >= 0 && row < b.in;
      const T* from = x + (is_inside ? pool.element(PoolSide::In, place.plane, depth, row, 0) : 0) + place.lane;
#pragma unroll 3
      for (int32_t k = 0; k < c.kernel; ++k, to += patches.tap_step) {
        const int32_t column = first + k * c.dilation;
        Vector<T, n> values{};
        if (is_inside && column >= 0 && column < c.in) values = load_vector<n>(from + int64_t{column} * pool.lanes);
        store_vector(to, values);
      }
    }
  }
}

template <int n, typename T>
__global__ void __launch_bounds__(block_threads)
    fold_kernel(PoolPlanes pool, Patches patches, T* x, const T* y, int32_t accesses) {
  const auto number = static_cast<int32_t>(blockIdx.x * block_threads + threadIdx.x);
  if (number >= accesses) return;
  const PoolPlace place(pool, PoolSide::In, n, number);
  float sums[n] = {};
  for_window_rows_over(pool, place, [&](int32_t a, int32_t b, const Positions& over, int32_t row_tap) {
    const T* row = y + patches.at(pool, place.plane, a, b, 0, place.lane) + row_tap * patches.tap_step;
    for (int32_t c = over.first; c <= over.last; ++c) {
      const int32_t tap = over.tap(pool.axes[2], c);
      if (tap < 0) continue;
      const Vector<T, n> values = load_vector<n>(row + int64_t{c} * pool.lanes * patches.taps + tap * patches.tap_step);
#pragma unroll
      for (int i = 0; i < n; ++i) sums[i] += widen(values.at[i]);
    }
  });
  Vector<T, n> values;
#pragma unroll
  for (int i = 0; i < n; ++i) values.at[i] = narrow<T>(sums[i]);
  store_vector(x + int64_t{number} * n, values);
}

}  // namespace

cudaError_t unfold(const PoolShape& shape, Scalar type, void* y, const void* x, cudaStream_t stream) {
  return over_accesses(shape, PoolSide::Out, type, [&]<typename T>(T*, auto n, int32_t accesses, unsigned blocks) {
    unfold_kernel<n()><<<blocks, block_threads, 0, stream>>>(PoolPlanes(shape, n), Patches(shape), static_cast<T*>(y),
                                                             static_cast<const T*>(x), accesses);
  });
}

cudaError_t fold(const PoolShape& shape, Scalar type, void* x, const void* y, cudaStream_t stream) {
  return over_accesses(shape, PoolSide::In, type, [&]<typename T>(T*, auto n, int32_t accesses, unsigned blocks) {
    fold_kernel<n()><<<blocks, block_threads, 0, stream>>>(PoolPlanes(shape, n), Patches(shape), static_cast<T*>(x),
                                                           static_cast<const T*>(y), accesses);
  });
}

}  // namespace plimsoll::cuda
