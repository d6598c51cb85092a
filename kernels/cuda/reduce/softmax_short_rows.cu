#include "kernels/cuda/reduce/softmax.cuh"

// Serves softmax, log_softmax and their gradients of rows of up to 64 elements, or up to 32 whole accesses. Every
// element is read once and written once. A warp a row would leave most lanes without work: of four classes all but one.
// Of rows of up to 16 elements that lie apart a thread has several neighbours.

namespace plimsoll::cuda {
namespace {

struct LargerOfTwo {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <SoftmaxKind kind, int n, int held, int at_once, typename T>
__global__ void __launch_bounds__(short_row_threads) softmax_short_rows_kernel(RowsByLanes rows, T* y, const T* x) {
  const TeamOfRow<n, held, at_once> team(rows);
  Packed<T, n> kept[at_once][held];
  team.load(kept, x);
#pragma unroll
  for (int r = 0; r < at_once; ++r) {
    RunningSum total = RunningSum::none();
#pragma unroll
    for (int k = 0; k < held; ++k)
      if (team.has(r, k))
#pragma unroll
        for (int i = 0; i < n; ++i) total.largest = fmaxf(total.largest, kept[r][k][i]);
    total.largest = team.reduce(total.largest, LargerOfTwo());
    float results[held][n];
#pragma unroll
    for (int k = 0; k < held; ++k)
#pragma unroll
      for (int i = 0; i < n; ++i) {
        if (!team.has(r, k)) continue;
        results[k][i] = exp2f((kept[r][k][i] - total.largest) * log2_e);
        total.sum += results[k][i];
      }
    total.sum = team.reduce(total.sum, Add());
    const float share = 1.0f / total.sum, log_sum = kind == SoftmaxKind::Log ? total.log() : 0.0f;
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (!team.has(r, k)) continue;
#pragma unroll
      for (int i = 0; i < n; ++i)
        results[k][i] = kind == SoftmaxKind::Log ? kept[r][k][i] - log_sum : results[k][i] * share;
      store_packed(y + team.at(r, k), pack<T>(results[k]));
    }
  }
}

template <SoftmaxKind kind, int n, int held, int at_once, typename T>
__global__ void __launch_bounds__(short_row_threads)
    grad_short_rows_kernel(RowsByLanes rows, T* dx, const T* y, const T* dy) {
  const TeamOfRow<n, held, at_once> team(rows);
  Packed<T, n> kept[at_once][held], grads[at_once][held];
  team.load(kept, y);
  team.load(grads, dy);
#pragma unroll
  for (int r = 0; r < at_once; ++r) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < held; ++k)
      if (team.has(r, k))
#pragma unroll
        for (int i = 0; i < n; ++i) sum += term_of<kind>(kept[r][k][i], grads[r][k][i]);
    sum = team.reduce(sum, Add());
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (!team.has(r, k)) continue;
      float results[n];
#pragma unroll
      for (int i = 0; i < n; ++i) results[i] = gradient_of<kind>(kept[r][k][i], grads[r][k][i], sum);
      store_packed(dx + team.at(r, k), pack<T>(results));
    }
  }
}

// ---- Elements that lie apart: a thread has neighbouring rows ----

constexpr int column_threads = 256, column_held = static_cast<int>(ShortColumns::max_length);

// Rows of a thread: the offset of their first elements, or none.
template <int n>
__device__ int64_t start_of_columns(const AxisShape& shape) {
  const int64_t at = (int64_t{blockIdx.x} * column_threads + threadIdx.x) * n;
  if (at >= shape.rows()) return -1;
  return at / shape.inner * shape.length * shape.inner + at % shape.inner;
}

template <SoftmaxKind kind, int n, typename T>
__global__ void __launch_bounds__(column_threads) softmax_short_columns_kernel(AxisShape shape, T* y, const T* x) {
  const int64_t start = start_of_columns<n>(shape);
  if (start < 0) return;
  const int length = static_cast<int>(shape.length);
  Packed<T, n> kept[column_held];
#pragma unroll
  for (int k = 0; k < column_held; ++k)
    if (k < length) kept[k] = load_packed<n>(x + start + k * shape.inner);
  RunningSum totals[n];
#pragma unroll
  for (int i = 0; i < n; ++i) totals[i] = RunningSum::none();
#pragma unroll
  for (int k = 0; k < column_held; ++k)
    if (k < length)
#pragma unroll
      for (int i = 0; i < n; ++i) totals[i].largest = fmaxf(totals[i].largest, kept[k][i]);
#pragma unroll
  for (int k = 0; k < column_held; ++k)
    if (k < length)
#pragma unroll
      for (int i = 0; i < n; ++i) totals[i].sum += exp2f((kept[k][i] - totals[i].largest) * log2_e);
  float of_all[n];  // what is taken off a logarithm, or what an exponential is multiplied by
#pragma unroll
  for (int i = 0; i < n; ++i) of_all[i] = kind == SoftmaxKind::Log ? totals[i].log() : 1.0f / totals[i].sum;
#pragma unroll
  for (int k = 0; k < column_held; ++k) {
    if (k >= length) continue;
    float results[n];
#pragma unroll
    for (int i = 0; i < n; ++i)
      results[i] = kind == SoftmaxKind::Log ? kept[k][i] - of_all[i]
                                            : exp2f((kept[k][i] - totals[i].largest) * log2_e) * of_all[i];
    store_packed(y + start + k * shape.inner, pack<T>(results));
  }
}

template <SoftmaxKind kind, int n, typename T>
__global__ void __launch_bounds__(column_threads)
    grad_short_columns_kernel(AxisShape shape, T* dx, const T* y, const T* dy) {
  const int64_t start = start_of_columns<n>(shape);
  if (start < 0) return;
  const int length = static_cast<int>(shape.length);
  Packed<T, n> kept[column_held], grads[column_held];
#pragma unroll
  for (int k = 0; k < column_held; ++k) {
    if (k >= length) continue;
    kept[k] = load_packed<n>(y + start + k * shape.inner);
    grads[k] = load_packed<n>(dy + start + k * shape.inner);
  }
  float sums[n] = {};
#pragma unroll
  for (int k = 0; k < column_held; ++k)
    if (k < length)
#pragma unroll
      for (int i = 0; i < n; ++i) sums[i] += term_of<kind>(kept[k][i], grads[k][i]);
#pragma unroll
  for (int k = 0; k < column_held; ++k) {
    if (k >= length) continue;
    float results[n];
#pragma unroll
    for (int i = 0; i < n; ++i) results[i] = gradient_of<kind>(kept[k][i], grads[k][i], sums[i]);
    store_packed(dx + start + k * shape.inner, pack<T>(results));
  }
}

// Calls body with the kind as an integral constant.
template <typename Body>
void with_kind(SoftmaxKind kind, Body body) {
  if (kind == SoftmaxKind::Log)
    body(std::integral_constant<SoftmaxKind, SoftmaxKind::Log>());
  else
    body(std::integral_constant<SoftmaxKind, SoftmaxKind::Plain>());
}

// Calls launch(n, blocks, kind), n and the kind as integral constants. Accesses have 8 bytes, or an element where rows
// are not a multiple of that.
template <typename T, typename Launch>
void with_columns(SoftmaxKind kind, const AxisShape& shape, Launch launch) {
  const auto with = [&](auto n) {
    const unsigned blocks = blocks_for(shape.rows() / n, column_threads);
    with_kind(kind, [&](auto of_kind) { launch(n, blocks, of_kind); });
  };
  constexpr int wide = 8 / sizeof(T);
  if (shape.inner % wide == 0)
    with(std::integral_constant<int, wide>());
  else
    with(std::integral_constant<int, 1>());
}

}  // namespace

cudaError_t softmax_of_short_rows(SoftmaxKind kind, const RowsByLanes& rows, Scalar type, void* y, const void* x,
                                  cudaStream_t stream) {
  return with_f32_math(type, [&]<typename T>(T*) {
    with_kind(kind, [&](auto of_kind) {
      with_short_rows<T>(rows, [&](auto n, auto held, auto at_once, unsigned blocks) {
        softmax_short_rows_kernel<of_kind, n, held, at_once>
            <<<blocks, short_row_threads, 0, stream>>>(rows, static_cast<T*>(y), static_cast<const T*>(x));
      });
    });
  });
}

cudaError_t softmax_grad_of_short_rows(SoftmaxKind kind, const RowsByLanes& rows, Scalar type, void* dx, const void* y,
                                       const void* dy, cudaStream_t stream) {
  return with_f32_math(type, [&]<typename T>(T*) {
    with_kind(kind, [&](auto of_kind) {
      with_short_rows<T>(rows, [&](auto n, auto held, auto at_once, unsigned blocks) {
        grad_short_rows_kernel<of_kind, n, held, at_once><<<blocks, short_row_threads, 0, stream>>>(
            rows, static_cast<T*>(dx), static_cast<const T*>(y), static_cast<const T*>(dy));
      });
    });
  });
}

cudaError_t softmax_of_short_columns(SoftmaxKind kind, const AxisShape& shape, Scalar type, void* y, const void* x,
                                     cudaStream_t stream) {
  return with_f32_math(type, [&]<typename T>(T*) {
    with_columns<T>(kind, shape, [&](auto n, unsigned blocks, auto of_kind) {
      softmax_short_columns_kernel<of_kind, n>
          <<<blocks, column_threads, 0, stream>>>(shape, static_cast<T*>(y), static_cast<const T*>(x));
    });
  });
}

cudaError_t softmax_grad_of_short_columns(SoftmaxKind kind, const AxisShape& shape, Scalar type, void* dx,
                                          const void* y, const void* dy, cudaStream_t stream) {
  return with_f32_math(type, [&]<typename T>(T*) {
    with_columns<T>(kind, shape, [&](auto n, unsigned blocks, auto of_kind) {
      grad_short_columns_kernel<of_kind, n><<<blocks, column_threads, 0, stream>>>(
          shape, static_cast<T*>(dx), static_cast<const T*>(y), static_cast<const T*>(dy));
    });
  });
}

}  // namespace plimsoll::cuda
