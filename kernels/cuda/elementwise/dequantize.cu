#include "kernels/cuda/elementwise/dequantize.h"

#include "kernels/cuda/elementwise/elementwise_map.cuh"

// Traffic is that of the result, which is written once in words of 16 bytes, and of the codes, a quarter or half of it;
// scales are read once for each run of 8 elements and stay in the cache. Numbers of codes lie in shared memory.

namespace plimsoll::cuda {
namespace {

constexpr int run_length = 8, runs_per_thread = 4;

__device__ float scale_of(const Dequantize& call, const float* map, int64_t block) {
  if (call.scale_codes == nullptr) return call.scales[block];
  return __fadd_rn(__fmul_rn(map[call.scale_codes[block]], call.scale_scales[block / 256]), *call.offset);
}

template <int bits>
__device__ int code_of(const uint8_t* codes, int64_t i) {
  if constexpr (bits == 8)
    return codes[i];
  else
    return i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
}

// A run begins at a multiple of 8, so its codes are whole bytes and aligned words.
template <int bits>
__device__ void load_codes(const uint8_t* codes, int64_t at, int (&into)[run_length]) {
  const Vector<uint8_t, bits> bytes = load_vector<bits>(codes + at / 8 * bits);
#pragma unroll
  for (int k = 0; k < run_length; ++k) {
    if constexpr (bits == 8)
      into[k] = bytes.at[k];
    else
      into[k] = k % 2 == 0 ? bytes.at[k / 2] >> 4 : bytes.at[k / 2] & 15;
  }
}

template <typename T, int bits, bool one_scale>
__global__ void __launch_bounds__(block_threads)
    dequantize_kernel(const __grid_constant__ Dequantize call, T* __restrict__ y) {
  __shared__ float values[256], map[256];
  for (int i = threadIdx.x; i < 256; i += block_threads) {
    values[i] = call.values[i];
    map[i] = call.map[i];
  }
  __syncthreads();
#pragma unroll
  for (int run = 0; run < runs_per_thread; ++run) {
    const int64_t at = ((int64_t{blockIdx.x} * runs_per_thread + run) * block_threads + threadIdx.x) * run_length;
    if (at >= call.n) return;
    const int count = call.n - at < run_length ? static_cast<int>(call.n - at) : run_length;
    Vector<T, run_length> results;
    if (one_scale && count == run_length) {
      const float scale = scale_of(call, map, at / call.block);
      int codes[run_length];
      load_codes<bits>(call.codes, at, codes);
#pragma unroll
      for (int k = 0; k < run_length; ++k)
        results.at[k] = narrow<T>(__fmul_rn(__fmul_rn(values[codes[k]], scale), call.factor));
    } else {
#pragma unroll
      for (int k = 0; k < run_length; ++k) {
        if (k >= count) continue;
        const float scale = scale_of(call, map, (at + k) / call.block);
        results.at[k] = narrow<T>(__fmul_rn(__fmul_rn(values[code_of<bits>(call.codes, at + k)], scale), call.factor));
      }
    }
    store_run(y + at, results, count);
  }
}

template <typename T, int bits>
void launch(const Dequantize& call, void* y, cudaStream_t stream) {
  const unsigned blocks = blocks_for(call.n, int64_t{block_threads} * runs_per_thread * run_length);
  if (call.block % run_length == 0)
    dequantize_kernel<T, bits, true><<<blocks, block_threads, 0, stream>>>(call, static_cast<T*>(y));
  else
    dequantize_kernel<T, bits, false><<<blocks, block_threads, 0, stream>>>(call, static_cast<T*>(y));
}

template <typename T>
cudaError_t dequantize_as(const Dequantize& call, int bits, void* y, cudaStream_t stream) {
  bits == 4 ? launch<T, 4>(call, y, stream) : launch<T, 8>(call, y, stream);
  return cudaGetLastError();
}

}  // namespace

cudaError_t dequantize(const Dequantize& call, int bits, Scalar type, void* y, cudaStream_t stream) {
  if (call.n == 0) return cudaSuccess;
  if (type == Scalar::F32) return dequantize_as<float>(call, bits, y, stream);
  if (type == Scalar::BF16) return dequantize_as<bf16>(call, bits, y, stream);
  if (type == Scalar::F16) return dequantize_as<f16>(call, bits, y, stream);
  return cudaErrorInvalidValue;
}

}  // namespace plimsoll::cuda
