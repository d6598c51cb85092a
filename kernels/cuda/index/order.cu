#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/index/along_axis.h"
#include "kernels/cuda/index/index.cuh"

// Serves arg_max, arg_min and top_k. arg_max reads x once, top_k once for each of the k. Searches along an axis, one
// warp per line, or one thread where lines are short. Elements are ordered by value, NaN first, and equal ones by
// index, so that the order is total and any division of the work finds the same element.

namespace plimsoll::cuda {
namespace {

template <typename Value>
struct Candidate {
  Value value;
  int64_t index;  // -1: none
};

struct Order {
  Extreme extreme;
  Ties ties;

  template <typename Value>
  __device__ bool precedes(Value a, Value b) const {
    if (a != a || b != b) return a != a && b == b;
    return extreme == Extreme::Largest ? a > b : a < b;
  }

  // Whether a comes before b; what is none comes last.
  template <typename Value>
  __device__ bool operator()(const Candidate<Value>& a, const Candidate<Value>& b) const {
    if (a.index < 0 || b.index < 0) return b.index < 0 && a.index >= 0;
    if (precedes(a.value, b.value)) return true;
    if (precedes(b.value, a.value)) return false;
    return ties == Ties::First ? a.index < b.index : a.index > b.index;
  }
};

struct Lines {
  AnyTensor x;
  AxisShape axis;
  Divider inner;
};

// The first of a line in the order among those that come after `previous`; the same in each of the line's threads.
template <int threads, typename Value>
__device__ Candidate<Value> first_after(const Lines& lines, const Order& before, int64_t line,
                                        const Candidate<Value>& previous) {
  int64_t i = line;
  const int64_t outer = lines.inner.divide(i);
  Candidate<Value> best{Value{0}, -1};
  for (int64_t k = threadIdx.x % threads; k < lines.axis.length; k += threads) {
    const Candidate<Value> next{load_any<Value>(lines.x, (outer * lines.axis.length + k) * lines.axis.inner + i), k};
    if ((previous.index < 0 || before(previous, next)) && before(next, best)) best = next;
  }
  if (threads == 1) return best;
  return warp_reduce(best, [&](const Candidate<Value>& a, const Candidate<Value>& b) { return before(b, a) ? b : a; });
}

template <typename Value>
__global__ void arg_kernel(const __grid_constant__ Lines lines, Order before, int64_t n, int64_t* y) {
  const int64_t line = (int64_t{blockIdx.x} * block_threads + threadIdx.x) / 32;
  if (line >= n) return;
  const Candidate<Value> best = first_after<32>(lines, before, line, Candidate<Value>{Value{0}, -1});
  if (threadIdx.x % 32 == 0) y[line] = best.index;
}

template <int threads, typename Value>
__global__ void top_k_kernel(const __grid_constant__ Lines lines, Order before, int64_t n, int64_t count, void* values,
                             int64_t* indices) {
  const int64_t line = (int64_t{blockIdx.x} * block_threads + threadIdx.x) / threads;
  if (line >= n) return;
  int64_t i = line;
  const int64_t outer = lines.inner.divide(i);
  Candidate<Value> best{Value{0}, -1};
  for (int64_t rank = 0; rank < count; ++rank) {
    best = first_after<threads>(lines, before, line, best);
    const int64_t to = (outer * count + rank) * lines.axis.inner + i;
    if (threadIdx.x % threads != 0) continue;
    store_any(values, lines.x.type, to, best.value);
    indices[to] = best.index;
  }
}

// Calls visit with a zero of what the type is compared in.
template <typename Visit>
cudaError_t with_compared(Scalar type, Visit visit) {
  if (is_float(type)) return visit(double{});
  if (type == Scalar::U64) return visit(uint64_t{});
  return visit(int64_t{});
}

}  // namespace

cudaError_t arg_extreme(Extreme extreme, Ties ties, Scalar type, int64_t* y, const void* x, const AxisShape& axis,
                        cudaStream_t stream) {
  const int64_t n = axis.outer * axis.inner;
  if (n == 0) return cudaSuccess;
  const Lines lines{{x, type}, axis, Divider(axis.inner)};
  return with_compared(type, [&](auto zero) {
    arg_kernel<decltype(zero)><<<blocks_for(32 * n), block_threads, 0, stream>>>(lines, {extreme, ties}, n, y);
    return cudaGetLastError();
  });
}

cudaError_t top_k(LineThreads threads, Extreme extreme, int64_t k, Scalar type, void* values, int64_t* indices,
                  const void* x, const AxisShape& axis, cudaStream_t stream) {
  const int64_t n = axis.outer * axis.inner;
  if (n * k == 0) return cudaSuccess;
  const Lines lines{{x, type}, axis, Divider(axis.inner)};
  return with_compared(type, [&](auto zero) {
    using Value = decltype(zero);
    const Order before{extreme, Ties::First};
    if (threads == LineThreads::One)
      top_k_kernel<1, Value><<<blocks_for(n), block_threads, 0, stream>>>(lines, before, n, k, values, indices);
    else
      top_k_kernel<32, Value><<<blocks_for(32 * n), block_threads, 0, stream>>>(lines, before, n, k, values, indices);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
