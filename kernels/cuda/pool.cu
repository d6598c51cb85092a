#include "kernels/cuda/pool.h"

#include "kernels/cuda/rows.cuh"

#include <cmath>

// A thread an element of the result; overlapping windows read the cache.

namespace plimsoll::cuda {
namespace {

constexpr int block_threads = 256;

// A place of x or y: a plane and three spatial indices.
struct Place {
  int64_t batch, channel;
  int32_t at[3];
};

// Tensors have fewer than 2^31 elements, so that 32-bit divisions do.
__device__ uint32_t take_index(uint32_t& number, int64_t size) {
  const uint32_t index = number % static_cast<uint32_t>(size);
  number /= static_cast<uint32_t>(size);
  return index;
}

__device__ Place place_of(const PoolShape& shape, const int32_t (&sizes)[3], int64_t element) {
  auto number = static_cast<uint32_t>(element);
  Place place;
  if (shape.channels_last) place.channel = take_index(number, shape.channels);
  for (int d = 2; d >= 0; --d) place.at[d] = static_cast<int32_t>(take_index(number, sizes[d]));
  if (!shape.channels_last) place.channel = take_index(number, shape.channels);
  place.batch = number;
  return place;
}

__device__ int64_t element_of(const PoolShape& shape, const int32_t (&sizes)[3], const Place& plane, int32_t a,
                              int32_t b, int32_t c) {
  const int64_t spatial = (int64_t{a} * sizes[1] + b) * sizes[2] + c, size = int64_t{sizes[0]} * sizes[1] * sizes[2];
  if (shape.channels_last) return (plane.batch * size + spatial) * shape.channels + plane.channel;
  return (plane.batch * shape.channels + plane.channel) * size + spatial;
}

// Input indices first, first + dilation, ... below end that a window position covers along dimension d.
struct Span {
  int32_t first, end, step;

  __device__ Span(const PoolShape& shape, int d, int32_t position) : step(shape.dilations[d]) {
    first = position * shape.strides[d] - shape.pads_begin[d];
    const int32_t past = first + shape.kernel[d] * step;
    if (first < 0) first += (-first + step - 1) / step * step;
    end = past < shape.in[d] ? past : shape.in[d];
  }
  // With `padded`, elements of the padding count as well; what sticks out further never does.
  __device__ static int32_t count(const PoolShape& shape, int d, int32_t position, bool padded) {
    const int32_t step = shape.dilations[d], low = padded ? -shape.pads_begin[d] : 0;
    const int32_t high = shape.in[d] + (padded ? shape.pads_end[d] : 0);
    int32_t count = 0;
    for (int32_t k = 0, i = position * shape.strides[d] - shape.pads_begin[d]; k < shape.kernel[d]; ++k, i += step)
      count += i >= low && i < high;
    return count;
  }
};

// Calls visit(element of x) for the window's elements in kernel order.
template <typename Visit>
__device__ void for_window(const PoolShape& shape, const Place& plane, const int32_t (&position)[3], Visit visit) {
  const Span a(shape, 0, position[0]), b(shape, 1, position[1]), c(shape, 2, position[2]);
  for (int32_t i = a.first; i < a.end; i += a.step)
    for (int32_t j = b.first; j < b.end; j += b.step)
      for (int32_t k = c.first; k < c.end; k += c.step) visit(element_of(shape, shape.in, plane, i, j, k));
}

// Window positions from first to last, some of which cover input index i along dimension d.
struct Positions {
  int32_t first, last;

  __device__ Positions(const PoolShape& shape, int d, int32_t i) {
    const int32_t at = i + shape.pads_begin[d], reach = shape.dilations[d] * (shape.kernel[d] - 1);
    first = at > reach ? (at - reach + shape.strides[d] - 1) / shape.strides[d] : 0;
    last = at / shape.strides[d];
    if (last >= shape.out[d]) last = shape.out[d] - 1;
  }
};

__device__ bool covers(const PoolShape& shape, int d, int32_t position, int32_t i) {
  return (i + shape.pads_begin[d] - position * shape.strides[d]) % shape.dilations[d] == 0;
}

// Calls visit(position) for the windows that cover the place of x, in their order.
template <typename Visit>
__device__ void for_windows_over(const PoolShape& shape, const Place& place, Visit visit) {
  const Positions a(shape, 0, place.at[0]), b(shape, 1, place.at[1]), c(shape, 2, place.at[2]);
  for (int32_t i = a.first; i <= a.last; ++i) {
    if (!covers(shape, 0, i, place.at[0])) continue;
    for (int32_t j = b.first; j <= b.last; ++j) {
      if (!covers(shape, 1, j, place.at[1])) continue;
      for (int32_t k = c.first; k <= c.last; ++k) {
        if (!covers(shape, 2, k, place.at[2])) continue;
        const int32_t position[3] = {i, j, k};
        visit(position);
      }
    }
  }
}

// The element of x that a window chooses, -1 where it meets none.
template <typename T>
__device__ int64_t first_maximum(const PoolShape& shape, const Place& plane, const int32_t (&position)[3],
                                 const T* x) {
  int64_t best = -1;
  float largest = 0.0f;
  for_window(shape, plane, position, [&](int64_t element) {
    const float value = widen(x[element]);
    if (best >= 0 && !(value > largest) && !(value != value && largest == largest)) return;
    best = element;
    largest = value;
  });
  return best;
}

__device__ int64_t column_major(const PoolShape& shape, const int32_t (&at)[3], const Place& plane) {
  const int64_t spatial = (int64_t{at[2]} * shape.in[1] + at[1]) * shape.in[0] + at[0];
  const int64_t size = int64_t{shape.in[0]} * shape.in[1] * shape.in[2];
  return (plane.batch * shape.channels + plane.channel) * size + spatial;
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    max_pool_kernel(PoolShape shape, T* y, int64_t* indices, bool columns_first, const T* x, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= elements) return;
  const Place place = place_of(shape, shape.out, i);
  const int64_t best = first_maximum(shape, place, place.at, x);
  y[i] = best >= 0 ? x[best] : narrow<T>(-INFINITY);
  if (!indices) return;
  indices[i] = columns_first && best >= 0 ? column_major(shape, place_of(shape, shape.in, best).at, place) : best;
}

// The number in kernel order of the kernel element through which a window position meets a place of x.
__device__ int32_t tap_of(const PoolShape& shape, const int32_t (&position)[3], const int32_t (&at)[3]) {
  int32_t tap = 0;
  for (int d = 0; d < 3; ++d)
    tap = tap * shape.kernel[d] + (at[d] + shape.pads_begin[d] - position[d] * shape.strides[d]) / shape.dilations[d];
  return tap;
}

// What each window chose, for the gradient; windows that meet no input choose `no_tap`.
constexpr uint8_t no_tap = 255;

template <typename T>
__global__ void __launch_bounds__(block_threads)
    chosen_taps_kernel(PoolShape shape, uint8_t* taps, const T* x, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= elements) return;
  const Place place = place_of(shape, shape.out, i);
  const int64_t best = first_maximum(shape, place, place.at, x);
  taps[i] = best < 0 ? no_tap : static_cast<uint8_t>(tap_of(shape, place.at, place_of(shape, shape.in, best).at));
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    max_pool_grad_kernel(PoolShape shape, T* dx, const uint8_t* taps, const T* dy, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= elements) return;
  const Place place = place_of(shape, shape.in, i);
  float sum = 0.0f;
  for_windows_over(shape, place, [&](const int32_t(&position)[3]) {
    const int64_t window = element_of(shape, shape.out, place, position[0], position[1], position[2]);
    if (taps[window] == tap_of(shape, position, place.at)) sum += widen(dy[window]);
  });
  dx[i] = narrow<T>(sum);
}

__device__ float window_count(const PoolShape& shape, const int32_t (&position)[3], bool padded) {
  float count = 1.0f;
  for (int d = 0; d < 3; ++d) count *= static_cast<float>(Span::count(shape, d, position[d], padded));
  return count;
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    average_pool_kernel(PoolShape shape, bool padded, T* y, const T* x, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= elements) return;
  const Place place = place_of(shape, shape.out, i);
  float sum = 0.0f;
  for_window(shape, place, place.at, [&](int64_t element) { sum += widen(x[element]); });
  const float count = window_count(shape, place.at, padded);
  y[i] = narrow<T>(count > 0.0f ? sum / count : 0.0f);
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    average_pool_grad_kernel(PoolShape shape, bool padded, T* dx, const T* dy, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= elements) return;
  const Place place = place_of(shape, shape.in, i);
  float sum = 0.0f;
  for_windows_over(shape, place, [&](const int32_t(&position)[3]) {
    sum += widen(dy[element_of(shape, shape.out, place, position[0], position[1], position[2])]) /
           window_count(shape, position, padded);
  });
  dx[i] = narrow<T>(sum);
}

int64_t elements_of(const PoolShape& shape, const int32_t (&sizes)[3]) {
  return shape.batch * shape.channels * sizes[0] * sizes[1] * sizes[2];
}

// Calls launch(null pointer of the element's type, blocks) unless there is nothing to do.
template <typename Launch>
cudaError_t over_elements(Scalar type, int64_t elements, Launch launch) {
  if (elements == 0) return cudaSuccess;
  return with_f32_math(type, [&](auto* element) {
    launch(element, static_cast<unsigned>(divide_up(elements, block_threads)));
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t max_pool(const PoolShape& shape, Scalar type, void* y, int64_t* indices, bool columns_first, const void* x,
                     cudaStream_t stream) {
  const int64_t elements = elements_of(shape, shape.out);
  return over_elements(type, elements, [&](auto* element, unsigned blocks) {
    using T = std::remove_pointer_t<decltype(element)>;
    max_pool_kernel<<<blocks, block_threads, 0, stream>>>(shape, static_cast<T*>(y), indices, columns_first,
                                                          static_cast<const T*>(x), elements);
  });
}

cudaError_t max_pool_grad(const PoolShape& shape, Scalar type, void* dx, const void* x, const void* dy, uint8_t* taps,
                          cudaStream_t stream) {
  const int64_t windows = elements_of(shape, shape.out), elements = elements_of(shape, shape.in);
  const cudaError_t error = over_elements(type, windows, [&](auto* element, unsigned blocks) {
    using T = std::remove_pointer_t<decltype(element)>;
    chosen_taps_kernel<<<blocks, block_threads, 0, stream>>>(shape, taps, static_cast<const T*>(x), windows);
  });
  if (error != cudaSuccess) return error;
  return over_elements(type, elements, [&](auto* element, unsigned blocks) {
    using T = std::remove_pointer_t<decltype(element)>;
    max_pool_grad_kernel<<<blocks, block_threads, 0, stream>>>(shape, static_cast<T*>(dx), taps,
                                                               static_cast<const T*>(dy), elements);
  });
}

cudaError_t average_pool(const PoolShape& shape, Scalar type, bool include_padding, void* y, const void* x,
                         cudaStream_t stream) {
  const int64_t elements = elements_of(shape, shape.out);
  return over_elements(type, elements, [&](auto* element, unsigned blocks) {
    using T = std::remove_pointer_t<decltype(element)>;
    average_pool_kernel<<<blocks, block_threads, 0, stream>>>(shape, include_padding, static_cast<T*>(y),
                                                              static_cast<const T*>(x), elements);
  });
}

cudaError_t average_pool_grad(const PoolShape& shape, Scalar type, bool include_padding, void* dx, const void* dy,
                              cudaStream_t stream) {
  const int64_t elements = elements_of(shape, shape.in);
  return over_elements(type, elements, [&](auto* element, unsigned blocks) {
    using T = std::remove_pointer_t<decltype(element)>;
    average_pool_grad_kernel<<<blocks, block_threads, 0, stream>>>(shape, include_padding, static_cast<T*>(dx),
                                                                   static_cast<const T*>(dy), elements);
  });
}

}  // namespace plimsoll::cuda
