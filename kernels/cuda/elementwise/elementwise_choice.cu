#include "kernels/cuda/elementwise/elementwise.h"

#include "kernels/cuda/elementwise/elementwise_map.cuh"

// Serves where, cast and add_n. Every operand is read once and the result written once. Choosing, converting and adding
// up.

namespace plimsoll::cuda {
namespace {

struct Choose {
  template <typename T>
  __device__ T operator()(uint8_t condition, T a, T b) const {
    return condition ? a : b;
  }
};

struct Identity {
  __device__ float operator()(float x) const { return x; }
};

template <typename Value>
__global__ void any_cast_kernel(void* y, Scalar y_type, AnyTensor x, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i < n) store_any(y, y_type, i, load_any<Value>(x, i));
}

template <typename From>
cudaError_t cast_from(Scalar y_type, void* y, const void* from, int64_t n, cudaStream_t stream) {
  const From* x = static_cast<const From*>(from);
  if (y_type == Scalar::F32) return map(Identity{}, n, static_cast<float*>(y), x, stream);
  if (y_type == Scalar::BF16) return map(Identity{}, n, static_cast<bf16*>(y), x, stream);
  return map(Identity{}, n, static_cast<f16*>(y), x, stream);
}

bool is_common_float(Scalar type) { return type == Scalar::F32 || type == Scalar::BF16 || type == Scalar::F16; }

// Arguments of a launch: few terms are the rule, and cost less to pass.
constexpr int few_terms = 8;

template <int capacity>
struct Terms {
  const void* at[capacity];
};

// One 16-byte run a thread, the terms one after the other.
template <int capacity, typename T>
__global__ void __launch_bounds__(block_threads)
    add_many_kernel(T* y, const __grid_constant__ Terms<capacity> terms, int term_count, int64_t n) {
  constexpr int length = map_vector<T>;
  const int64_t at = (int64_t{blockIdx.x} * block_threads + threadIdx.x) * length, left = n - at;
  if (left <= 0) return;
  const int count = left < length ? static_cast<int>(left) : length;
  Compute<T> sums[length] = {};
#pragma unroll 4
  for (int term = 0; term < term_count; ++term) {
    const auto run = load_run<length>(static_cast<const T*>(terms.at[term]) + at, true, count);
#pragma unroll
    for (int k = 0; k < length; ++k) sums[k] += widen(run.at[k]);
  }
  Vector<T, length> result;
#pragma unroll
  for (int k = 0; k < length; ++k) result.at[k] = narrow<T>(sums[k]);
  store_run(y + at, result, count);
}

// Sums of integers wrap, so that one unsigned kernel serves all.
template <int capacity>
__global__ void add_many_integers_kernel(void* y, Scalar type, const __grid_constant__ Terms<capacity> terms,
                                         int term_count, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  uint64_t sum = 0;
  for (int term = 0; term < term_count; ++term) sum += load_any<uint64_t>({terms.at[term], type}, i);
  store_any(y, type, i, sum);
}

}  // namespace

cudaError_t where(const LoopNest<4>& nest, int element_bytes, void* y, const bool* condition, const void* a,
                  const void* b, cudaStream_t stream) {
  return with_element_bytes(element_bytes, [&]<typename T>(T*) {
    return map_broadcast(Choose{}, nest, stream, static_cast<T*>(y), reinterpret_cast<const uint8_t*>(condition),
                         static_cast<const T*>(a), static_cast<const T*>(b));
  });
}

cudaError_t cast_elements(Scalar y_type, void* y, Scalar x_type, const void* x, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  if (is_common_float(x_type) && is_common_float(y_type)) {
    if (x_type == Scalar::F32) return cast_from<float>(y_type, y, x, n, stream);
    if (x_type == Scalar::BF16) return cast_from<bf16>(y_type, y, x, n, stream);
    return cast_from<f16>(y_type, y, x, n, stream);
  }
  const unsigned blocks = blocks_for(n);
  if (x_type == Scalar::U64)
    any_cast_kernel<uint64_t><<<blocks, block_threads, 0, stream>>>(y, y_type, {x, x_type}, n);
  else if (is_float(x_type))
    any_cast_kernel<double><<<blocks, block_threads, 0, stream>>>(y, y_type, {x, x_type}, n);
  else
    any_cast_kernel<int64_t><<<blocks, block_threads, 0, stream>>>(y, y_type, {x, x_type}, n);
  return cudaGetLastError();
}

namespace {

template <int capacity>
cudaError_t add_terms(Scalar type, void* y, const void* const* terms, int term_count, int64_t n, cudaStream_t stream) {
  Terms<capacity> list{};
  for (int term = 0; term < term_count; ++term) list.at[term] = terms[term];
  if (!is_float(type)) {
    add_many_integers_kernel<<<blocks_for(n), block_threads, 0, stream>>>(y, type, list, term_count, n);
    return cudaGetLastError();
  }
  return with_float(type, [&]<typename T>(T*) {
    const unsigned blocks = blocks_for(n, int64_t{block_threads} * map_vector<T>);
    add_many_kernel<<<blocks, block_threads, 0, stream>>>(static_cast<T*>(y), list, term_count, n);
  });
}

}  // namespace

cudaError_t add_many(Scalar type, void* y, const void* const* terms, int term_count, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return (term_count <= few_terms ? add_terms<few_terms> : add_terms<max_terms>)(type, y, terms, term_count, n, stream);
}

}  // namespace plimsoll::cuda
