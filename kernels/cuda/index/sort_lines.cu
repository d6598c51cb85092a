#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/index/along_axis.h"
#include "kernels/cuda/index/index.cuh"
#include "kernels/cuda/index/sorted_lines.h"

// The k first of each line, by bitonic sorts in shared memory (Batcher 1968). A key is the value's bits in the order
// that is asked for, above the index, so that keys differ and equal values stay in the order of their indices. Runs
// are sorted up and down by turns: the smaller keys of two runs are the first of both, and bitonic.

namespace plimsoll::cuda {
namespace {

struct KeyedLines {
  AnyTensor x;
  AxisShape axis;
  Divider inner;
  int64_t count;  // of lines
  SortedLines shape;

  __device__ int64_t at(int64_t line, int64_t k, int64_t length) const {
    int64_t i = line;
    const int64_t outer = inner.divide(i);
    return (outer * length + k) * axis.inner + i;
  }
};

// NaN comes first; zeros of both signs are equal.
__device__ uint64_t key_of(float value, Extreme extreme, uint32_t index) {
  const uint32_t bits = value == 0 ? 0 : __float_as_uint(value);
  const uint32_t upward = bits >> 31 ? ~bits : bits | 0x80000000u;
  const uint32_t place = value != value ? 0 : extreme == Extreme::Largest ? ~upward : upward;
  return uint64_t{place} << 32 | index;
}

// Orders the pairs that are `distance` apart in the live runs, of which each line has 2^live_bits elements, one run in
// 2^apart. Warps have 64 elements each where the distance is at most 32, the same from one such step to the next.
__device__ void order_pairs(uint64_t* keys, const SortedLines& shape, int live_bits, int apart, int size,
                            int distance) {
  const int pairs = shape.per_block << (live_bits - 1);
  for (int p = threadIdx.x; p < pairs; p += blockDim.x) {
    const int line = p >> (live_bits - 1), q = p & ((1 << (live_bits - 1)) - 1);
    const int i = 2 * q - (q & (distance - 1));
    const int run = i >> shape.run_bits, element = i & ((1 << shape.run_bits) - 1);
    uint64_t* at = keys + (line << shape.line_bits) + (run << (shape.run_bits + apart)) + element;
    const uint64_t a = at[0], b = at[distance];
    if ((a > b) == ((i & size) == 0)) at[0] = b, at[distance] = a;
  }
}

__device__ void order_runs(uint64_t* keys, const SortedLines& shape, int live_bits, int apart, int size) {
  for (int distance = size / 2; distance > 0; distance /= 2) {
    if (distance >= 32)
      __syncthreads();
    else
      __syncwarp();
    order_pairs(keys, shape, live_bits, apart, size, distance);
  }
}

__global__ void __launch_bounds__(1024) sorted_top_k_kernel(const __grid_constant__ KeyedLines lines, Extreme extreme,
                                                            int k, void* values, int64_t* indices) {
  extern __shared__ uint64_t keys[];
  const SortedLines& shape = lines.shape;
  const int64_t first = int64_t{blockIdx.x} * shape.per_block;
  for (int e = threadIdx.x; e < shape.keys(); e += blockDim.x) {
    const int64_t line = first + (e >> shape.line_bits);
    const int index = e & ((1 << shape.line_bits) - 1);
    const bool there = line < lines.count && index < lines.axis.length;
    keys[e] = there ? key_of(load_any<float>(lines.x, lines.at(line, index, lines.axis.length)), extreme,
                             static_cast<uint32_t>(index))
                    : ~uint64_t{0};
  }
  __syncthreads();
  for (int bits = 1; bits <= shape.run_bits; ++bits) order_runs(keys, shape, shape.line_bits, 0, 1 << bits);
  int apart = 0;
  for (int live = shape.line_bits; live > shape.run_bits; --live, ++apart) {
    __syncthreads();
    const int run = 1 << (shape.run_bits + apart);
    for (int t = threadIdx.x; t < shape.per_block << (live - 1); t += blockDim.x) {
      const int line = t >> (live - 1), u = t & ((1 << (live - 1)) - 1);
      uint64_t* at =
          keys + (line << shape.line_bits) + 2 * run * (u >> shape.run_bits) + (u & ((1 << shape.run_bits) - 1));
      if (at[run] < at[0]) at[0] = at[run];
    }
    __syncthreads();
    order_runs(keys, shape, live - 1, apart + 1, 1 << shape.run_bits);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < shape.per_block * k; e += blockDim.x) {
    const int64_t line = first + e / k;
    if (line >= lines.count) return;
    const auto index = static_cast<uint32_t>(keys[(e / k << shape.line_bits) + e % k]);
    const int64_t to = lines.at(line, e % k, k);
    store_any(values, lines.x.type, to, load_any<float>(lines.x, lines.at(line, index, lines.axis.length)));
    indices[to] = index;
  }
}

}  // namespace

cudaError_t top_k_sorted(Extreme extreme, int64_t k, Scalar type, void* values, int64_t* indices, const void* x,
                         const AxisShape& axis, cudaStream_t stream) {
  const int64_t n = axis.outer * axis.inner;
  if (n * k == 0) return cudaSuccess;
  const SortedLines shape(axis.length, k);
  const int bytes = shape.keys() * static_cast<int>(sizeof(uint64_t));
  if (cudaError_t error = cudaFuncSetAttribute(sorted_top_k_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      error != cudaSuccess)
    return error;
  const KeyedLines lines{{x, type}, axis, Divider(axis.inner), n, shape};
  sorted_top_k_kernel<<<static_cast<unsigned>((n + shape.per_block - 1) / shape.per_block), shape.threads(), bytes,
                        stream>>>(lines, extreme, static_cast<int>(k), values, indices);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
