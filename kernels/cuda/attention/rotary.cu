#include "kernels/cuda/attention/rotary.h"

#include "kernels/cuda/common/rows.cuh"

#include <algorithm>

// Serves rotary. x is read and y written once; tables come from the cache. One block per row. Pairs whose halves lie
// apart go by 16-byte accesses where they fit.

namespace plimsoll::cuda {
namespace {

// n pairs at a time.
template <typename T, typename P, int n>
__global__ void __launch_bounds__(256) rotary_kernel(RotaryCall call) {
  const int64_t row = blockIdx.x, angles = row % call.table_rows * call.pairs;
  const auto runs = static_cast<unsigned>(call.pairs / n), units = static_cast<unsigned>(call.turned) * runs;
  const P *cos = static_cast<const P*>(call.cos) + angles, *sin = static_cast<const P*>(call.sin) + angles;
  const float direction = call.inverse ? -1.0f : 1.0f;
  for (unsigned unit = threadIdx.x; unit < units; unit += blockDim.x) {
    const int64_t i = int64_t{unit % runs} * n, head = (row * call.heads + unit / runs) * call.depth;
    const int64_t first = head + (call.interleaved ? 2 * i : i), second = first + (call.interleaved ? 1 : call.pairs);
    const T* x = static_cast<const T*>(call.x);
    Vector<T, n> a = load_vector<n>(x + first), b = load_vector<n>(x + second);
#pragma unroll
    for (int e = 0; e < n; ++e) {
      const float c = widen(cos[i + e]), s = direction * widen(sin[i + e]);
      const float left = widen(a.at[e]), right = widen(b.at[e]);
      a.at[e] = narrow<T>(left * c - right * s);
      b.at[e] = narrow<T>(right * c + left * s);
    }
    store_vector(static_cast<T*>(call.y) + first, a);
    store_vector(static_cast<T*>(call.y) + second, b);
  }
  if (call.x == call.y) return;
  const auto copy = [&](int64_t at) {
    store_vector(static_cast<T*>(call.y) + at, load_vector<n>(static_cast<const T*>(call.x) + at));
  };
  const int64_t head = row * call.heads;
  const auto rest = static_cast<unsigned>((call.depth - 2 * call.pairs) / n);
  for (unsigned unit = threadIdx.x; unit < rest * call.turned; unit += blockDim.x)
    copy((head + unit / rest) * call.depth + 2 * call.pairs + int64_t{unit % rest} * n);
  const auto behind = static_cast<unsigned>((call.heads - call.turned) * call.depth / n);
  for (unsigned unit = threadIdx.x; unit < behind; unit += blockDim.x)
    copy((head + call.turned) * call.depth + int64_t{unit} * n);
}

}  // namespace

cudaError_t rotary(const RotaryCall& call, cudaStream_t stream) {
  if (call.rows * call.heads * call.depth == 0) return cudaSuccess;
  return with_f32_math_pair(call.type, call.table_type, [&](auto* x, auto* table) {
    using T = std::remove_pointer_t<decltype(x)>;
    using P = std::remove_pointer_t<decltype(table)>;
    constexpr int n = vector_length<T>;
    const auto rows = static_cast<unsigned>(call.rows);
    const bool fits = !call.interleaved && call.pairs % n == 0 && call.depth % n == 0;
    const int64_t units = call.heads * std::max(call.pairs, call.depth - 2 * call.pairs) / (fits ? n : 1);
    const auto threads = static_cast<unsigned>(std::clamp<int64_t>(divide_up(units, 32) * 32, 32, 256));
    if (fits)
      rotary_kernel<T, P, n><<<rows, threads, 0, stream>>>(call);
    else
      rotary_kernel<T, P, 1><<<rows, threads, 0, stream>>>(call);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
