#include "kernels/cuda/attention/attention_one_pass.cuh"
#include "kernels/cuda/common/packed.cuh"

// Serves attention_grad ("one_pass") where the query heads of a key head are divided among several blocks: dk and dv
// are the sums of the parts, in their order. Bound by reading the parts; a thread has eight neighbouring elements.

namespace plimsoll::cuda {
namespace {

constexpr int threads = 256, run = 8;

template <typename T>
struct PartsOfRows {
  T* to;
  const float* from;  // [parts, rows, width]
  int64_t step, width;
};

template <typename T>
__global__ void __launch_bounds__(threads)
    sum_parts_kernel(PartsOfRows<T> k, PartsOfRows<T> v, int64_t rows, int parts) {
  PartsOfRows<T> sums = k;
  if (blockIdx.y != 0) sums = v;
  const int64_t runs = sums.width / run, number = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (number >= rows * runs) return;
  const int64_t row = number / runs, at = number % runs * run;
  float sum[run] = {};
  for (int part = 0; part < parts; ++part) {
    const float* const from = sums.from + (part * rows + row) * sums.width + at;
#pragma unroll
    for (int i = 0; i < run; i += 4) {
      const auto values = load_packed<4>(from + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i + j] += values[j];
    }
  }
  store_packed(sums.to + row * sums.step + at, pack<T>(sum));
}

}  // namespace

cudaError_t sum_parts_of_heads(const AttentionShape& n, const AttentionGradCall& grads, cudaStream_t stream) {
  const int64_t rows = n.batch * n.columns, width = n.kv_heads * n.depth, value_width = n.kv_heads * n.value_depth;
  const int64_t blocks = (rows * (width > value_width ? width : value_width) / run + threads - 1) / threads;
  return with_16_bit_float(n.type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const float* const partials = grads.one_pass.partials;
    const PartsOfRows<T> k{static_cast<T*>(grads.dk), partials, n.k_step, width},
        v{static_cast<T*>(grads.dv), partials + grads.one_pass.parts * rows * width, n.v_step, value_width};
    sum_parts_kernel<T>
        <<<dim3(static_cast<unsigned>(blocks), 2), threads, 0, stream>>>(k, v, rows, grads.one_pass.parts);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
