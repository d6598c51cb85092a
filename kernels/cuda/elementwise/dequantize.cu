#include "kernels/cuda/elementwise/dequantize.h"

#include "kernels/cuda/elementwise/elementwise_map.cuh"

// Traffic is that of the result, which is written once in words of 16 bytes, and of the codes, a quarter or half of it;
// scales are read once for each run of 8 elements and stay in the cache. Numbers of codes lie in shared memory.

namespace plimsoll::cuda {
namespace {

constexpr int run_length = 8, runs_per_thread = 4;

__device__ float float_at(const void* numbers, Scalar type, int64_t at) {
  if (type == Scalar::F32) return static_cast<const float*>(numbers)[at];
  return type == Scalar::BF16 ? widen(static_cast<const bf16*>(numbers)[at])
                              : widen(static_cast<const f16*>(numbers)[at]);
}

__device__ float scale_of(const Dequantize& call, const float* map, int64_t block) {
  if (call.scale_codes == nullptr) return float_at(call.scales, call.scale_type, block);
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

// Of two codes in a byte the first is the low half.
template <int bits>
__device__ int low_code_of(const uint8_t* codes, int64_t i) {
  return bits == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
}

struct ScaleAndZero {
  float scale, zero;
};

template <int bits>
__device__ ScaleAndZero block_of(const DequantizeLinear& call, const float* values, int64_t row, int64_t column) {
  const int64_t grid_columns = (call.columns + call.block - 1) / call.block;
  const int64_t grid_row = row / call.block_rows, block = column / call.block;
  return {float_at(call.scales, call.scale_type, grid_row * grid_columns + block),
          call.zeros ? values[low_code_of<bits>(call.zeros, grid_row * call.zeros_per_row + block)] : call.zero};
}

// A run of 8 numbers of the flat matrix begins at a multiple of 8. With one_scale, rows and blocks are multiples of 8
// long, so that a run lies within one block.
template <typename T, int bits, bool one_scale>
__global__ void __launch_bounds__(block_threads)
    dequantize_linear_kernel(const __grid_constant__ DequantizeLinear call, T* __restrict__ y) {
  __shared__ float values[256];
  for (int i = threadIdx.x; i < 256; i += block_threads) values[i] = call.values[i];
  __syncthreads();
  const int64_t n = call.rows * call.columns;
#pragma unroll
  for (int step = 0; step < runs_per_thread; ++step) {
    const int64_t at = ((int64_t{blockIdx.x} * runs_per_thread + step) * block_threads + threadIdx.x) * run_length;
    if (at >= n) return;
    const int count = n - at < run_length ? static_cast<int>(n - at) : run_length;
    int64_t row = at / call.columns, column = at - row * call.columns;
    Vector<T, run_length> results;
    ScaleAndZero block = block_of<bits>(call, values, row, column);
    if (one_scale) {
      const Vector<uint8_t, bits> bytes = load_vector<bits>(call.codes + at / 8 * bits);
#pragma unroll
      for (int k = 0; k < run_length; ++k) {
        int code = 0;
        if constexpr (bits == 8)
          code = bytes.at[k];
        else
          code = bytes.at[k / 2] >> (k % 2 * 4) & 15;
        results.at[k] = narrow<T>(__fmul_rn(values[code] - block.zero, block.scale));
      }
    } else {
#pragma unroll
      for (int k = 0; k < run_length; ++k) {
        if (k >= count) continue;
        if (k > 0) {
          if (++column == call.columns) column = 0, ++row;
          block = block_of<bits>(call, values, row, column);
        }
        const float steps = values[low_code_of<bits>(call.codes, at + k)] - block.zero;
        results.at[k] = narrow<T>(__fmul_rn(steps, block.scale));
      }
    }
    store_run(y + at, results, count);
  }
}

template <typename T, int bits>
void launch_linear(const DequantizeLinear& call, void* y, cudaStream_t stream) {
  const unsigned blocks = blocks_for(call.rows * call.columns, int64_t{block_threads} * runs_per_thread * run_length);
  if (call.block % run_length == 0 && call.columns % run_length == 0)
    dequantize_linear_kernel<T, bits, true><<<blocks, block_threads, 0, stream>>>(call, static_cast<T*>(y));
  else
    dequantize_linear_kernel<T, bits, false><<<blocks, block_threads, 0, stream>>>(call, static_cast<T*>(y));
}

template <typename T>
cudaError_t dequantize_linear_as(const DequantizeLinear& call, int bits, void* y, cudaStream_t stream) {
  bits == 4 ? launch_linear<T, 4>(call, y, stream) : launch_linear<T, 8>(call, y, stream);
  return cudaGetLastError();
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

cudaError_t dequantize_linear(const DequantizeLinear& call, int bits, Scalar type, void* y, cudaStream_t stream) {
  if (call.rows * call.columns == 0) return cudaSuccess;
  if (type == Scalar::F32) return dequantize_linear_as<float>(call, bits, y, stream);
  if (type == Scalar::BF16) return dequantize_linear_as<bf16>(call, bits, y, stream);
  if (type == Scalar::F16) return dequantize_linear_as<f16>(call, bits, y, stream);
  return cudaErrorInvalidValue;
}

}  // namespace plimsoll::cuda
