#include "kernels/cuda/reduce/softmax.cuh"

#include <algorithm>

// Serves softmax, log_softmax, their gradients and hardmax, x [outer, length, inner]. Every element is written once.
// Short rows of consecutive elements belong to some lanes (softmax_short_rows.cu), others to a warp or a block that
// holds them (softmax_held_rows.cu). Longer ones belong to a block that reads them twice, the second time from the
// cache. With other dimensions inside, neighbouring threads take neighbouring rows, and keep those of few elements
// (softmax_short_rows.cu).

namespace plimsoll::cuda {
namespace {

// Row `row` of [outer, length, inner]: elements `inner` apart.
__device__ int64_t start_of(const AxisShape& shape, int64_t row) {
  return row / shape.inner * shape.length * shape.inner + row % shape.inner;
}

// ---- Kernels ----

constexpr int long_row_threads = 512;

template <SoftmaxKind kind, typename T>
__global__ void __launch_bounds__(long_row_threads) softmax_rows_kernel(AxisShape shape, T* out, const T* in) {
  const int64_t row = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const T* x = in + row * shape.length;
  T* y = out + row * shape.length;
  RunningSum total = RunningSum::none();
  for_row(x, shape.length, t, threads, [&](int64_t, const auto& values) { total = add_elements(total, values); });
  total = team_reduce<RowTeam::Block>(total, MergeSums(), RunningSum::none());
  for_row(x, shape.length, t, threads, [&](int64_t at, auto values) {
    for (T& value : values.at) value = narrow<T>(result_of<kind>(widen(value), total));
    store_vector(y + at, values);
  });
}

template <SoftmaxKind kind, typename T>
__global__ void __launch_bounds__(256) softmax_strided_kernel(AxisShape shape, T* y, const T* x) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= shape.rows()) return;
  const int64_t start = start_of(shape, row);
  RunningSum total = RunningSum::none();
  for (int64_t k = 0; k < shape.length; ++k) total = add_elements(total, Vector<T, 1>{{x[start + k * shape.inner]}});
  for (int64_t k = 0; k < shape.length; ++k) {
    const int64_t at = start + k * shape.inner;
    y[at] = narrow<T>(result_of<kind>(widen(x[at]), total));
  }
}

template <SoftmaxKind kind, typename T>
__global__ void __launch_bounds__(long_row_threads)
    grad_rows_kernel(AxisShape shape, T* out, const T* in, const T* grads) {
  const int64_t row = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const T *y = in + row * shape.length, *dy = grads + row * shape.length;
  T* dx = out + row * shape.length;
  float sum = 0;
  for_row(y, shape.length, t, threads, [&](int64_t at, const auto& values) {
    constexpr int n = sizeof(values) / sizeof(T);
    const Vector<T, n> d = load_vector<n>(dy + at);
    for (int i = 0; i < n; ++i) sum += term_of<kind>(widen(values.at[i]), widen(d.at[i]));
  });
  sum = team_sum<RowTeam::Block>(sum);
  for_row(y, shape.length, t, threads, [&](int64_t at, auto values) {
    constexpr int n = sizeof(values) / sizeof(T);
    const Vector<T, n> d = load_vector<n>(dy + at);
    for (int i = 0; i < n; ++i) values.at[i] = narrow<T>(gradient_of<kind>(widen(values.at[i]), widen(d.at[i]), sum));
    store_vector(dx + at, values);
  });
}

template <SoftmaxKind kind, typename T>
__global__ void __launch_bounds__(256) grad_strided_kernel(AxisShape shape, T* dx, const T* y, const T* dy) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= shape.rows()) return;
  const int64_t start = start_of(shape, row);
  float sum = 0;
  for (int64_t k = 0; k < shape.length; ++k) {
    const int64_t at = start + k * shape.inner;
    sum += term_of<kind>(widen(y[at]), widen(dy[at]));
  }
  for (int64_t k = 0; k < shape.length; ++k) {
    const int64_t at = start + k * shape.inner;
    dx[at] = narrow<T>(gradient_of<kind>(widen(y[at]), widen(dy[at]), sum));
  }
}

// One thread per row.
template <typename T>
__global__ void __launch_bounds__(256) hardmax_kernel(AxisShape shape, T* y, const T* x) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= shape.rows()) return;
  const int64_t start = start_of(shape, row);
  int64_t best = 0;
  for (int64_t k = 1; k < shape.length; ++k)
    if (widen(x[start + best * shape.inner]) < widen(x[start + k * shape.inner])) best = k;
  for (int64_t k = 0; k < shape.length; ++k) y[start + k * shape.inner] = narrow<T>(k == best ? 1.0f : 0.0f);
}

// ---- Launches ----

template <typename T>
int threads_of(const AxisShape& shape) {
  return std::min(threads_for_row(shape.length / vector_length<T>), long_row_threads);
}

template <SoftmaxKind kind, typename T>
void launch_softmax(const AxisShape& shape, T* y, const T* x, cudaStream_t stream) {
  if (shape.inner > 1) {
    softmax_strided_kernel<kind><<<blocks_for(shape.rows()), 256, 0, stream>>>(shape, y, x);
    return;
  }
  softmax_rows_kernel<kind><<<static_cast<unsigned>(shape.outer), threads_of<T>(shape), 0, stream>>>(shape, y, x);
}

template <SoftmaxKind kind, typename T>
void launch_grad(const AxisShape& shape, T* dx, const T* y, const T* dy, cudaStream_t stream) {
  if (shape.inner > 1) {
    grad_strided_kernel<kind><<<blocks_for(shape.rows()), 256, 0, stream>>>(shape, dx, y, dy);
    return;
  }
  grad_rows_kernel<kind><<<static_cast<unsigned>(shape.outer), threads_of<T>(shape), 0, stream>>>(shape, dx, y, dy);
}

bool is_empty(const AxisShape& shape) { return shape.rows() * shape.length == 0; }

// Rows of elements apart from each other are none.
RowsByLanes short_rows_of(const AxisShape& shape, Scalar type) {
  return {shape.outer, shape.inner == 1 ? shape.length : 0, type == Scalar::F32 ? 4 : 2};
}

}  // namespace

cudaError_t softmax(SoftmaxKind kind, const AxisShape& shape, Scalar type, void* y, const void* x,
                    cudaStream_t stream) {
  if (is_empty(shape)) return cudaSuccess;
  if (const RowsByLanes rows = short_rows_of(shape, type); rows.lanes > 0)
    return softmax_of_short_rows(kind, rows, type, y, x, stream);
  if (const HeldRows rows(shape); rows.size > 0) return softmax_of_held_rows(kind, rows, type, y, x, stream);
  if (ShortColumns::takes(shape)) return softmax_of_short_columns(kind, shape, type, y, x, stream);
  return with_f32_math(type, [&]<typename T>(T*) {
    if (kind == SoftmaxKind::Log)
      launch_softmax<SoftmaxKind::Log>(shape, static_cast<T*>(y), static_cast<const T*>(x), stream);
    else
      launch_softmax<SoftmaxKind::Plain>(shape, static_cast<T*>(y), static_cast<const T*>(x), stream);
  });
}

cudaError_t softmax_grad(SoftmaxKind kind, const AxisShape& shape, Scalar type, void* dx, const void* y, const void* dy,
                         cudaStream_t stream) {
  if (is_empty(shape)) return cudaSuccess;
  if (const RowsByLanes rows = short_rows_of(shape, type); rows.lanes > 0)
    return softmax_grad_of_short_rows(kind, rows, type, dx, y, dy, stream);
  if (const HeldRows rows(shape); rows.size > 0) return softmax_grad_of_held_rows(kind, rows, type, dx, y, dy, stream);
  if (ShortColumns::takes(shape)) return softmax_grad_of_short_columns(kind, shape, type, dx, y, dy, stream);
  return with_f32_math(type, [&]<typename T>(T*) {
    T* out = static_cast<T*>(dx);
    const T *result = static_cast<const T*>(y), *grad = static_cast<const T*>(dy);
    if (kind == SoftmaxKind::Log)
      launch_grad<SoftmaxKind::Log>(shape, out, result, grad, stream);
    else
      launch_grad<SoftmaxKind::Plain>(shape, out, result, grad, stream);
  });
}

cudaError_t hardmax(const AxisShape& shape, Scalar type, void* y, const void* x, cudaStream_t stream) {
  if (is_empty(shape)) return cudaSuccess;
  return with_f32_math(type, [&]<typename T>(T*) {
    hardmax_kernel<<<blocks_for(shape.rows()), 256, 0, stream>>>(shape, static_cast<T*>(y), static_cast<const T*>(x));
  });
}

}  // namespace plimsoll::cuda
