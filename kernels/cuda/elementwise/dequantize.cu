#include "kernels/cuda/elementwise/dequantize.h"

#include "kernels/cuda/common/nest.cuh"
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

__device__ int64_t first_of_run(int run) {
  return ((int64_t{blockIdx.x} * runs_per_thread + run) * block_threads + threadIdx.x) * run_length;
}

template <typename T, int bits, bool one_scale>
__global__ void __launch_bounds__(block_threads)
    dequantize_kernel(const __grid_constant__ Dequantize call, const __grid_constant__ Divider of_block,
                      T* __restrict__ y) {
  __shared__ float values[256], map[256];
  for (int i = threadIdx.x; i < 256; i += block_threads) {
    values[i] = call.values[i];
    map[i] = call.map[i];
  }
  __syncthreads();
  auto scale_at = [&](int64_t at) { return scale_of(call, map, of_block.divide(at)); };
  auto number = [&](int code, float scale) {
    return narrow<T>(__fmul_rn(__fmul_rn(values[code], scale), call.factor));
  };
#pragma unroll
  for (int run = 0; run < runs_per_thread; ++run) {
    const int64_t at = first_of_run(run);
    if (at >= call.n) return;
    const int count = call.n - at < run_length ? static_cast<int>(call.n - at) : run_length;
    Vector<T, run_length> results;
    if (one_scale && count == run_length) {
      const float scale = scale_at(at);
      int codes[run_length];
      load_codes<bits>(call.codes, at, codes);
#pragma unroll
      for (int k = 0; k < run_length; ++k) results.at[k] = number(codes[k], scale);
    } else {
#pragma unroll
      for (int k = 0; k < run_length; ++k)
        if (k < count) results.at[k] = number(code_of<bits>(call.codes, at + k), scale_at(at + k));
    }
    store_run(y + at, results, count);
  }
}

// Of two codes in a byte the first is the low half.
template <int bits>
__device__ int low_code_of(const uint8_t* codes, int64_t i) {
  return bits == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
}

// How the numbers of a run get their scales: one for all, one for each, which lie side by side, or any.
enum class Blocks { One, Each, Any };

struct LinearBlocks {
  Divider columns, rows_of_block, columns_of_block;
};

// Where a number has its scale and its zero point.
struct BlockPlace {
  int64_t row, column;  // of blocks

  __device__ BlockPlace(const LinearBlocks& blocks, int64_t at) {
    column = at;
    row = blocks.columns.divide(column);
    row = blocks.rows_of_block.divide(row);
    column = blocks.columns_of_block.divide(column);
  }
  __device__ int64_t scale(const DequantizeLinear& call) const {
    return row * divide_up(call.columns, call.block) + column;
  }
  template <int bits>
  __device__ float zero(const DequantizeLinear& call, const float* values, int further) const {
    if (!call.zeros) return call.zero;
    return values[low_code_of<bits>(call.zeros, row * call.zeros_per_row + column + further)];
  }
};

template <typename S>
__device__ void load_scales(const void* from, int64_t at, float (&scales)[run_length]) {
  const Vector<S, run_length> loaded = load_vector<run_length>(static_cast<const S*>(from) + at);
#pragma unroll
  for (int k = 0; k < run_length; ++k) scales[k] = widen(loaded.at[k]);
}

// A run of 8 numbers of the flat matrix begins at a multiple of 8. Unless it is Blocks::Any, rows are multiples of 8
// long, and blocks too or 1 long.
template <typename T, int bits, Blocks kind>
__global__ void __launch_bounds__(block_threads)
    dequantize_linear_kernel(const __grid_constant__ DequantizeLinear call, const __grid_constant__ LinearBlocks blocks,
                             T* __restrict__ y) {
  constexpr int scales_of_run = kind == Blocks::One ? 1 : run_length;
  __shared__ float values[256];
  for (int i = threadIdx.x; i < 256; i += block_threads) values[i] = call.values[i];
  __syncthreads();
  const int64_t n = call.rows * call.columns;
  auto number = [&](int code, float zero, float scale) { return narrow<T>(__fmul_rn(values[code] - zero, scale)); };
#pragma unroll
  for (int run = 0; run < runs_per_thread; ++run) {
    const int64_t at = first_of_run(run);
    if (at >= n) return;
    const int count = n - at < run_length ? static_cast<int>(n - at) : run_length;
    Vector<T, run_length> results;
    if constexpr (kind == Blocks::Any) {
#pragma unroll
      for (int k = 0; k < run_length; ++k) {
        if (k >= count) continue;
        const BlockPlace place(blocks, at + k);
        results.at[k] = number(low_code_of<bits>(call.codes, at + k), place.zero<bits>(call, values, 0),
                               float_at(call.scales, call.scale_type, place.scale(call)));
      }
    } else {
      const Vector<uint8_t, bits> codes = load_vector<bits>(call.codes + at / 8 * bits);
      const BlockPlace place(blocks, at);
      const int64_t scale = place.scale(call);
      float scales[scales_of_run];
      if constexpr (kind == Blocks::One)
        scales[0] = float_at(call.scales, call.scale_type, scale);
      else if (call.scale_type == Scalar::F32)
        load_scales<float>(call.scales, scale, scales);
      else if (call.scale_type == Scalar::BF16)
        load_scales<bf16>(call.scales, scale, scales);
      else
        load_scales<f16>(call.scales, scale, scales);
      float zero = place.zero<bits>(call, values, 0);
#pragma unroll
      for (int k = 0; k < run_length; ++k) {
        if (kind == Blocks::Each && k > 0) zero = place.zero<bits>(call, values, k);
        const int code = bits == 8 ? codes.at[k % bits] : codes.at[k / 2] >> (k % 2 * 4) & 15;
        results.at[k] = number(code, zero, scales[k % scales_of_run]);
      }
    }
    store_run(y + at, results, count);
  }
}

template <typename T, int bits>
void launch_linear(const DequantizeLinear& call, void* y, cudaStream_t stream) {
  const unsigned grid = blocks_for(call.rows * call.columns, int64_t{block_threads} * runs_per_thread * run_length);
  const LinearBlocks blocks{Divider(call.columns), Divider(call.block_rows), Divider(call.block)};
  T* const out = static_cast<T*>(y);
  if (call.columns % run_length == 0 && call.block % run_length == 0)
    dequantize_linear_kernel<T, bits, Blocks::One><<<grid, block_threads, 0, stream>>>(call, blocks, out);
  else if (call.columns % run_length == 0 && call.block == 1)
    dequantize_linear_kernel<T, bits, Blocks::Each><<<grid, block_threads, 0, stream>>>(call, blocks, out);
  else
    dequantize_linear_kernel<T, bits, Blocks::Any><<<grid, block_threads, 0, stream>>>(call, blocks, out);
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
    dequantize_kernel<T, bits, true>
        <<<blocks, block_threads, 0, stream>>>(call, Divider(call.block), static_cast<T*>(y));
  else
    dequantize_kernel<T, bits, false>
        <<<blocks, block_threads, 0, stream>>>(call, Divider(call.block), static_cast<T*>(y));
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
