#include "kernels/cuda/reduce/softmax.cuh"

// Serves softmax, log_softmax and their gradients of rows of up to 64 elements, or up to 32 whole accesses. Every
// element is read once and written once. A warp a row would leave most lanes without work: of four classes all but one.

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

// Calls body with the kind as an integral constant.
template <typename Body>
void with_kind(SoftmaxKind kind, Body body) {
  if (kind == SoftmaxKind::Log)
    body(std::integral_constant<SoftmaxKind, SoftmaxKind::Log>());
  else
    body(std::integral_constant<SoftmaxKind, SoftmaxKind::Plain>());
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

}  // namespace plimsoll::cuda
