#include "kernels/cuda/elementwise/dequantize.h"

#include "kernels/cuda/common/card_attributes.h"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/elementwise/code_runs.cuh"

#include <algorithm>

// Traffic is that of the result, which is written once in words of 16 bytes, and of the codes, a quarter or half of it;
// scales are read once for each run of elements and stay in the cache. A thread loads the codes and scales of all its
// runs before it uses the first. Values lie in shared memory, since constants at an index of the thread arrive one
// after the other. The map of scales' codes stays among the constants: a warp reads few of its entries.

namespace plimsoll::cuda {
namespace {

// Where each block of threads makes a long table for itself, blocks stay. Otherwise as many blocks as there are chunks
// are faster than blocks that stay, by a tenth on an H100, and two runs for each thread than four.
template <int bits, CodeKind kind>
constexpr bool stays = bits == 8 && kind == CodeKind::Table;
template <int bits, CodeKind kind>
constexpr int runs_per_thread = stays<bits, kind> ? 4 : 2;
template <int bits, CodeKind kind>
constexpr int chunk = block_threads* runs_per_thread<bits, kind>;  // in runs

// 4-bit codes have no factor.
template <typename T, int bits>
__device__ T scaled(float number, float scale, float factor) {
  const float product = __fmul_rn(number, scale);
  return narrow<T>(bits == 8 ? __fmul_rn(product, factor) : product);
}

// Parts of a scale, which are put together where it is used.
template <bool packs_scales>
struct ScaleParts {
  uint32_t own = 0;  // its code, or its bits
  float shared = 0;

  __device__ void load(const Dequantize& call, uint64_t block) {
    if constexpr (packs_scales) {
      own = call.scale_codes[block];
      shared = call.scale_scales[block / 256];
    } else {
      own = load_bits(call.scales, call.scale_type, static_cast<int64_t>(block));
    }
  }
  __device__ float scale(const Dequantize& call, float offset) const {
    if constexpr (packs_scales) return __fadd_rn(__fmul_rn(call.map[own], shared), offset);
    return float_of(own, call.scale_type);
  }
};

__device__ int code_at(const Dequantize& call, int bits, int64_t i) {
  return bits == 8 ? call.codes[i] : call.codes[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
}

template <int codes>
__device__ void fill(float (&values)[codes], const Dequantize& call) {
  for (int i = static_cast<int>(threadIdx.x); i < codes; i += block_threads) values[i] = call.values[i];
  __syncthreads();
}

// The runs of a thread, of which those from number `runs` on do not exist.
template <typename T, int bits, CodeKind kind, bool packs_scales, bool is_whole>
__device__ void make_runs(const Dequantize& call, const Divider32& of_block, IntegerCodes integers, float offset,
                          const float* values, uint32_t first, uint32_t runs, T* __restrict__ y) {
  using Run = CodeRun<bits, run_length<T>>;
  constexpr int own_runs = runs_per_thread<bits, kind>;
  Run loaded[own_runs];
  ScaleParts<packs_scales> parts[own_runs];
#pragma unroll
  for (int r = 0; r < own_runs; ++r) {
    const uint32_t run = first + r * block_threads;
    if (!is_whole && run >= runs) continue;
    loaded[r] = Run::load(call.codes + uint64_t{run} * Run::bytes);
    parts[r].load(call, static_cast<uint32_t>(of_block.quotient(static_cast<int32_t>(run))));
  }
#pragma unroll
  for (int r = 0; r < own_runs; ++r) {
    const uint32_t run = first + r * block_threads;
    if (!is_whole && run >= runs) continue;
    const float scale = parts[r].scale(call, offset);
    float numbers[run_length<T>];
    if constexpr (kind == CodeKind::Integer) integers.counted(loaded[r], numbers);
    Vector<T, run_length<T>> results;
#pragma unroll
    for (int k = 0; k < run_length<T>; ++k) {
      const float number = kind == CodeKind::Integer ? numbers[k] - integers.zero_of(0)
                                                     : values[loaded[r].template at</*high_first=*/true>(k)];
      results.at[k] = scaled<T, bits>(number, scale, call.factor);
    }
    store_vector(y + uint64_t{run} * run_length<T>, results);
  }
}

// Blocks are whole runs; of_block divides the number of a run by the runs of a block. Behind the last whole
// run there may be some elements.
template <typename T, int bits, CodeKind kind, bool packs_scales>
__global__ void __launch_bounds__(block_threads)
    dequantize_runs_kernel(const __grid_constant__ Dequantize call, const __grid_constant__ Divider32 of_block,
                           IntegerCodes integers, T* __restrict__ y) {
  __shared__ float values[kind == CodeKind::Table ? 1 << bits : 1];
  if constexpr (kind == CodeKind::Table) fill(values, call);
  const float offset = packs_scales ? *call.offset : 0.0f;
  const auto runs = static_cast<uint32_t>(call.n / run_length<T>);
  constexpr int at_once = chunk<bits, kind>;
  for (uint32_t first = blockIdx.x * at_once; first < runs; first += gridDim.x * at_once)
    if (first + at_once <= runs)
      make_runs<T, bits, kind, packs_scales, true>(call, of_block, integers, offset, values, first + threadIdx.x, runs,
                                                   y);
    else
      make_runs<T, bits, kind, packs_scales, false>(call, of_block, integers, offset, values, first + threadIdx.x, runs,
                                                    y);
  const int64_t last = int64_t{runs} * run_length<T> + threadIdx.x;
  if (blockIdx.x > 0 || last >= call.n) return;
  ScaleParts<packs_scales> parts;
  parts.load(call, static_cast<uint64_t>(last / call.block));
  const float scale = parts.scale(call, offset);
  y[last] = scaled<T, bits>(call.values[code_at(call, bits, last)], scale, call.factor);
}

// Blocks of any length, and any factor.
template <typename T>
__global__ void __launch_bounds__(block_threads)
    dequantize_any_kernel(const __grid_constant__ Dequantize call, int bits, const __grid_constant__ Divider of_block,
                          T* __restrict__ y) {
  __shared__ float values[256];
  fill(values, call);
  const int64_t first = (int64_t{blockIdx.x} * block_threads + threadIdx.x) * run_length<T>;
  for (int64_t at = first; at < first + run_length<T> && at < call.n; ++at) {
    int64_t within = at;
    const int64_t block = of_block.divide(within);
    float scale;
    if (call.scale_codes) {
      ScaleParts<true> parts;
      parts.load(call, static_cast<uint64_t>(block));
      scale = parts.scale(call, *call.offset);
    } else {
      scale = float_at(call.scales, call.scale_type, block);
    }
    y[at] = scaled<T, 8>(values[code_at(call, bits, at)], scale, call.factor);
  }
}

// A block for each chunk, or of those that stay at most as many as the card holds at once.
template <typename T, int bits, CodeKind kind, bool packs_scales>
cudaError_t launch_runs(const Dequantize& call, IntegerCodes integers, T* y, cudaStream_t stream) {
  constexpr auto kernel = dequantize_runs_kernel<T, bits, kind, packs_scales>;
  unsigned blocks = blocks_for(call.n, chunk<bits, kind> * run_length<T>);
  if constexpr (stays<bits, kind>) {
    int multiprocessors = 0, resident = 0;
    if (cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess) return error;
    if (cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, block_threads, 0);
        error != cudaSuccess)
      return error;
    blocks = std::min(blocks, static_cast<unsigned>(multiprocessors * resident));
  }
  const Divider32 of_block(static_cast<int32_t>(call.block / run_length<T>));
  kernel<<<blocks, block_threads, 0, stream>>>(call, of_block, integers, y);
  return cudaGetLastError();
}

template <typename T, int bits, CodeKind kind>
cudaError_t launch_runs(const Dequantize& call, IntegerCodes integers, T* y, cudaStream_t stream) {
  return call.scale_codes ? launch_runs<T, bits, kind, true>(call, integers, y, stream)
                          : launch_runs<T, bits, kind, false>(call, integers, y, stream);
}

template <typename T>
cudaError_t dequantize_as(const Dequantize& call, int bits, void* out, cudaStream_t stream) {
  constexpr int64_t max_runs = INT32_MAX - 4 * block_threads;
  T* const y = static_cast<T*>(out);
  if (call.block % run_length<T> == 0 && std::max(call.n, call.block) / run_length<T> <= max_runs) {
    if (bits == 4 && call.factor == 1) return launch_runs<T, 4, CodeKind::Table>(call, {}, y, stream);
    if (bits == 8) {
      const std::optional<IntegerCodes> integers = integer_codes(call.values, bits);
      return integers ? launch_runs<T, 8, CodeKind::Integer>(call, *integers, y, stream)
                      : launch_runs<T, 8, CodeKind::Table>(call, {}, y, stream);
    }
  }
  dequantize_any_kernel<T><<<blocks_for(call.n, block_threads * run_length<T>), block_threads, 0, stream>>>(
      call, bits, Divider(call.block), y);
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
