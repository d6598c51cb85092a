#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/reduce/softmax.cuh"

// Serves softmax, log_softmax and their gradients of rows that fit into the registers of a warp or of a block: each
// element is read once, written once, and has one exponential. Rows whose elements lie `inner` apart share a span of
// consecutive elements, whose lanes take turns among them.

namespace plimsoll::cuda {
namespace {

constexpr int warps_per_block = 4;  // of a span each

struct LargerOfHeld {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// What a thread has of its span: accesses `threads` apart.
template <int n, int held, bool is_block>
struct PartOfSpan {
  static constexpr int accesses = held / n;

  int threads, thread, inner;
  int left;       // elements of the span from the thread's first one on
  int64_t first;  // element of all
  int64_t span;

  __device__ explicit PartOfSpan(const HeldRows& rows) : inner(rows.inner) {
    const int x = static_cast<int>(threadIdx.x);
    threads = is_block ? static_cast<int>(blockDim.x) : HeldRows::lanes;
    thread = is_block ? x : x % HeldRows::lanes;
    span = is_block ? int64_t{blockIdx.x} : int64_t{blockIdx.x} * warps_per_block + x / HeldRows::lanes;
    left = rows.size - thread * n;
    first = span * rows.size + thread * n;
  }
  __device__ int behind(int k) const { return k * threads * n; }
  __device__ bool has(int k) const { return behind(k) < left; }

  template <typename T>
  __device__ void load(Packed<T, n> (&to)[accesses], const T* from) const {
    from += first;
#pragma unroll
    for (int k = 0; k < accesses; ++k)
      if (has(k)) to[k] = load_packed<n>(from + behind(k));
  }
  // Calls visit(k, i) for each element.
  template <typename Visit>
  __device__ void each(Visit visit) const {
#pragma unroll
    for (int k = 0; k < accesses; ++k)
      if (has(k))
#pragma unroll
        for (int i = 0; i < n; ++i) visit(k, i);
  }
  // Every thread gets the total of the rows of its elements, whichever side of `combine` its part stands on.
  template <typename Combine>
  __device__ float reduce(float value, Combine combine) const {
    for (int distance = HeldRows::lanes / 2; distance >= inner; distance /= 2)
      value = combine(value, __shfl_xor_sync(whole_warp, value, distance));
    if constexpr (is_block) {
      __shared__ float parts[HeldRows::most_threads / HeldRows::lanes][HeldRows::lanes];
      const int warp = thread / HeldRows::lanes, lane = thread % HeldRows::lanes;
      __syncthreads();
      parts[warp][lane] = value;
      __syncthreads();
      value = parts[0][lane];
      for (int w = 1; w < threads / HeldRows::lanes; ++w) value = combine(value, parts[w][lane]);
    }
    return value;
  }
};

template <bool is_block>
constexpr int most_threads_of = is_block ? HeldRows::most_threads : warps_per_block* HeldRows::lanes;

template <int n, int held, bool is_block, typename T>
__global__ void __launch_bounds__(most_threads_of<is_block>)
    held_softmax_kernel(HeldRows rows, SoftmaxKind kind, T* y, const T* x) {
  const PartOfSpan<n, held, is_block> part(rows);
  if (part.span >= rows.spans) return;
  constexpr int accesses = held / n;
  Packed<T, n> kept[accesses];
  part.load(kept, x);
  RunningSum total = RunningSum::none();
  part.each([&](int k, int i) { total.largest = fmaxf(total.largest, kept[k][i]); });
  total.largest = part.reduce(total.largest, LargerOfHeld());
  float results[accesses][n];
  part.each([&](int k, int i) {
    results[k][i] = exp2f((kept[k][i] - total.largest) * log2_e);
    total.sum += results[k][i];
  });
  total.sum = part.reduce(total.sum, Add());
  y += part.first;
  const bool is_log = kind == SoftmaxKind::Log;
  const float share = 1.0f / total.sum, log_sum = is_log ? total.log() : 0.0f;
#pragma unroll
  for (int k = 0; k < accesses; ++k) {
    if (!part.has(k)) continue;
#pragma unroll
    for (int i = 0; i < n; ++i) results[k][i] = is_log ? kept[k][i] - log_sum : results[k][i] * share;
    store_packed(y + part.behind(k), pack<T>(results[k]));
  }
}

template <int n, int held, bool is_block, typename T>
__global__ void __launch_bounds__(most_threads_of<is_block>)
    held_grad_kernel(HeldRows rows, SoftmaxKind kind, T* dx, const T* y, const T* dy) {
  const PartOfSpan<n, held, is_block> part(rows);
  if (part.span >= rows.spans) return;
  constexpr int accesses = held / n;
  Packed<T, n> kept[accesses], grads[accesses];
  part.load(kept, y);
  part.load(grads, dy);
  const bool is_log = kind == SoftmaxKind::Log;
  float sum = 0;
  part.each([&](int k, int i) { sum += is_log ? grads[k][i] : kept[k][i] * grads[k][i]; });
  sum = part.reduce(sum, Add());
  dx += part.first;
#pragma unroll
  for (int k = 0; k < accesses; ++k) {
    if (!part.has(k)) continue;
    float results[n];
#pragma unroll
    for (int i = 0; i < n; ++i)
      results[i] = is_log ? gradient_of<SoftmaxKind::Log>(kept[k][i], grads[k][i], sum)
                          : gradient_of<SoftmaxKind::Plain>(kept[k][i], grads[k][i], sum);
    store_packed(dx + part.behind(k), pack<T>(results));
  }
}

// Calls launch(n, held, is_block, blocks, threads), of which the first three are integral constants. A warp has few
// elements a thread one by one, and a block many by wide accesses.
template <typename Launch>
void with_held_rows(const HeldRows& rows, Launch launch) {
  const auto of_warps = [&](auto n, auto held) {
    launch(n, held, std::false_type(), blocks_for(rows.spans, warps_per_block), warps_per_block * HeldRows::lanes);
  };
  const auto of_blocks = [&](auto n, auto held) {
    launch(n, held, std::true_type(), static_cast<unsigned>(rows.spans), rows.threads);
  };
  const std::integral_constant<int, 1> one;
  const std::integral_constant<int, HeldRows::wide_access> wide;
  const std::integral_constant<int, HeldRows::few_held> few;
  const std::integral_constant<int, HeldRows::many_held> many;
  if (rows.access == 1) {
    if (rows.held == HeldRows::many_held) return of_blocks(one, many);
    return rows.is_of_block() ? of_blocks(one, few) : of_warps(one, few);
  }
  if (rows.held == HeldRows::few_held) return of_warps(wide, few);
  return rows.is_of_block() ? of_blocks(wide, many) : of_warps(wide, many);
}

}  // namespace

cudaError_t softmax_of_held_rows(SoftmaxKind kind, const HeldRows& rows, Scalar type, void* y, const void* x,
                                 cudaStream_t stream) {
  return with_f32_math(type, [&]<typename T>(T*) {
    with_held_rows(rows, [&](auto n, auto held, auto is_block, unsigned blocks, int threads) {
      held_softmax_kernel<n, held, is_block>
          <<<blocks, threads, 0, stream>>>(rows, kind, static_cast<T*>(y), static_cast<const T*>(x));
    });
  });
}

cudaError_t softmax_grad_of_held_rows(SoftmaxKind kind, const HeldRows& rows, Scalar type, void* dx, const void* y,
                                      const void* dy, cudaStream_t stream) {
  return with_f32_math(type, [&]<typename T>(T*) {
    with_held_rows(rows, [&](auto n, auto held, auto is_block, unsigned blocks, int threads) {
      held_grad_kernel<n, held, is_block><<<blocks, threads, 0, stream>>>(
          rows, kind, static_cast<T*>(dx), static_cast<const T*>(y), static_cast<const T*>(dy));
    });
  });
}

}  // namespace plimsoll::cuda
