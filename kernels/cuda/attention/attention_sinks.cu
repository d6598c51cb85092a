#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/sinks_grad_sizes.h"
#include "kernels/cuda/common/rows.cuh"

#include <cmath>

// Serves attention_sinks_grad: reads y and dy once. A block sums some rows of one head, a warp for each row; parts meet
// in a second launch, in order.

namespace plimsoll::cuda {
namespace {

constexpr int block_warps = 8;

template <typename T>
__global__ void __launch_bounds__(32 * block_warps) sinks_grad_kernel(SinksGradCall n, int64_t parts) {
  __shared__ float of_warps[block_warps];
  const int64_t h = blockIdx.x % n.heads, part = blockIdx.x / n.heads, all = n.batch * n.rows;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const float sink = load_any<float>(AnyTensor{n.sinks, n.sinks_type}, h);
  float total = 0.0f;
  for (int64_t row = all * part / parts + warp; row < all * (part + 1) / parts; row += block_warps) {
    const float lse = n.lse[(row / n.rows * n.heads + h) * n.rows + row % n.rows];
    const int64_t first = (row * n.heads + h) * n.depth;
    const T *y = static_cast<const T*>(n.y) + first, *dy = static_cast<const T*>(n.dy) + first;
    float sum = 0.0f;
    for (int64_t d = lane; d < n.depth; d += 32) sum += widen(y[d]) * widen(dy[d]);
    if (lse > -INFINITY) total -= expf(sink - lse) * warp_reduce(sum, Add());
  }
  if (lane == 0) of_warps[warp] = total;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int other = 1; other < block_warps; ++other) total += of_warps[other];
  n.partials[part * n.heads + h] = total;
}

__global__ void __launch_bounds__(256) sum_sinks_kernel(SinksGradCall n, int64_t parts) {
  const int64_t h = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (h >= n.heads) return;
  float total = 0.0f;
  for (int64_t part = 0; part < parts; ++part) total += n.partials[part * n.heads + h];
  store_any(n.dsinks, n.sinks_type, h, static_cast<double>(total));
}

}  // namespace

cudaError_t attention_sinks_grad(const SinksGradCall& call, cudaStream_t stream) {
  if (call.heads == 0) return cudaSuccess;
  const int64_t parts = sinks_grad_parts(call.heads, call.batch * call.rows);
  const cudaError_t error = with_f32_math(call.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    sinks_grad_kernel<T><<<static_cast<unsigned>(call.heads * parts), 32 * block_warps, 0, stream>>>(call, parts);
    return cudaGetLastError();
  });
  if (error != cudaSuccess) return error;
  sum_sinks_kernel<<<static_cast<unsigned>(divide_up(call.heads, 256)), 256, 0, stream>>>(call, parts);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
