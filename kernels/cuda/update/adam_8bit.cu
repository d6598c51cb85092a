#include "kernels/cuda/common/card_attributes.h"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/update/adam_step.cuh"
#include "kernels/cuda/update/block_table.cuh"
#include "kernels/cuda/update/rounding.cuh"
#include "kernels/cuda/update/update.h"
#include "kernels/dynamic_map.h"

#include <algorithm>

// Serves adamw_8bit. Dequantises, updates and quantises in one pass: 16.06 bytes for an f32 parameter with an f32
// gradient, each read and written once. A warp takes norm_block elements, a block of moments at a time, so that a
// block's scale and the norm are reductions of one warp and no warp waits for another. Maps lie in shared memory, and a
// code is one look at a table of the number's bits. Thread blocks stay and take more work, since each makes the tables
// for itself.

namespace plimsoll::cuda {
namespace {

// A lane has four elements of each half of a block of moments: a warp's accesses leave no gap.
constexpr int lanes = 4, halves = 2, half_block = lanes * warp_threads;
static_assert(halves * half_block == eight_bit_block && norm_block % eight_bit_block == 0);
constexpr int table_size = 16;  // with the maps it keeps the parameters of a launch below 4 KB
constexpr int threads = 1024, warps = threads / warp_threads;

struct Adam8Table {
  BlockTable<table_size> runs;  // of norm_block elements
  Adam8Tensor tensors[table_size];
};

// What every thread looks up: 98 KB of shared memory, all that some cards give a block. Numbers of codes stand there
// once for each lane of a warp, in a bank of its own.
struct Tables {
  enum Map { Signed, Unsigned, count };

  float numbers[count][256][warp_threads];
  uint32_t bins_of_signed[CodeBins<true>::count], bins_of_unsigned[CodeBins<false>::count];
  float thresholds[count][256];

  // The number of byte `i` of four codes.
  __device__ float number(Map map, uint32_t codes, int i) const {
    constexpr int bits_of_row = 7;  // of an offset in bytes within numbers[map]
    static_assert(sizeof(numbers[map][0]) == 1 << bits_of_row);
    const uint32_t row = i == 0 ? codes << bits_of_row : codes >> (8 * i - bits_of_row);
    const uint32_t offset = (row & 255U << bits_of_row) | threadIdx.x % warp_threads * sizeof(float);
    return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(numbers[map]) + offset);
  }
  // The code in the highest byte.
  template <bool is_signed>
  __device__ uint32_t code_of(float share) const {
    const uint32_t key = CodeBins<is_signed>::key(share);
    return (is_signed ? bins_of_signed : bins_of_unsigned)[CodeBins<is_signed>::bin(key)] + key;
  }
  __device__ void make(const DynamicMaps& maps);
};

// As make_thresholds of ir/quantized_numbers.cpp.
__device__ float threshold_above(const float* map, int code) {
  if (code == 255) return INFINITY;
  const float below = map[code], half = __fmul_rn(map[code + 1] - below, 0.5f);
  float first = __fadd_rn(below, half);
  while (__fsub_rn(nextafterf(first, -INFINITY), below) >= half) first = nextafterf(first, -INFINITY);
  while (__fsub_rn(first, below) < half) first = nextafterf(first, INFINITY);
  return first;
}

__device__ void Tables::make(const DynamicMaps& maps) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < count * 256; i += threads) {
    const Map map = i < 256 ? Signed : Unsigned;
    const float* const of_map = map == Signed ? maps.of_signed : maps.of_unsigned;
    thresholds[map][i % 256] = threshold_above(of_map, i % 256);
    // Neighbouring threads begin at neighbouring banks.
    for (int lane = 0; lane < warp_threads; ++lane)
      numbers[map][i % 256][(lane + thread) % warp_threads] = of_map[i % 256];
  }
  __syncthreads();
  for (int bin = thread; bin < CodeBins<true>::count; bin += threads) {
    bins_of_signed[bin] = CodeBins<true>::entry(static_cast<uint32_t>(bin), thresholds[Signed]);
    bins_of_unsigned[bin] = CodeBins<false>::entry(static_cast<uint32_t>(bin), thresholds[Unsigned]);
  }
  __syncthreads();
}

// This lane's elements of a block of moments: `at` is the first of them, and of each half it has `counts`, which are
// four where the block is whole. Elements that it does not have are 0.
template <bool is_whole>
struct Place {
  int64_t at;
  int counts[halves];

  __device__ Place(int64_t first_of_block, int64_t elements) : at(first_of_block + threadIdx.x % warp_threads * lanes) {
#pragma unroll
    for (int half = 0; half < halves; ++half) {
      const int64_t left = elements - at - half * half_block;
      counts[half] = is_whole ? lanes : static_cast<int>(max(int64_t{0}, min(left, int64_t{lanes})));
    }
  }
  template <typename T>
  __device__ Vector<T, lanes> load(const T* from, int half) const {
    from += at + half * half_block;
    if constexpr (is_whole) {
      return load_vector<lanes>(from);
    } else {
      Vector<T, lanes> values;
#pragma unroll
      for (int i = 0; i < lanes; ++i) values.at[i] = i < counts[half] ? from[i] : T{};
      return values;
    }
  }
  template <typename T>
  __device__ void store(T* to, const Vector<T, lanes>& values, int half) const {
    to += at + half * half_block;
    if constexpr (is_whole) {
      store_vector(to, values);
    } else {
#pragma unroll
      for (int i = 0; i < lanes; ++i)
        if (i < counts[half]) to[i] = values.at[i];
    }
  }
  // Four codes in a word, the first in its lowest byte.
  __device__ uint32_t load_codes(const uint8_t* from, int half) const {
    from += at + half * half_block;
    if constexpr (is_whole) {
      return *reinterpret_cast<const uint32_t*>(from);
    } else {
      uint32_t codes = 0;
#pragma unroll
      for (int i = 0; i < lanes; ++i)
        if (i < counts[half]) codes |= uint32_t{from[i]} << 8 * i;
      return codes;
    }
  }
  __device__ void store_codes(uint8_t* to, uint32_t codes, int half) const {
    to += at + half * half_block;
    if constexpr (is_whole) {
      *reinterpret_cast<uint32_t*>(to) = codes;
    } else {
#pragma unroll
      for (int i = 0; i < lanes; ++i)
        if (i < counts[half]) to[i] = static_cast<uint8_t>(codes >> 8 * i);
    }
  }
};

using Elements = float[halves][lanes];

// x / divisor rounded once, by the reciprocal and what is left over.
__device__ float quotient(float x, float divisor, float reciprocal) {
  const float near = __fmul_rn(x, reciprocal);
  return __fmaf_rn(__fmaf_rn(-near, divisor, x), reciprocal, near);
}

// Gives the block's scale.
template <bool is_signed, bool is_whole>
__device__ float store_moments(uint8_t* codes, const Elements& values, float min_scale, const Tables& tables,
                               const Place<is_whole>& place) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < halves * lanes; ++i) largest = fmaxf(largest, fabsf(values[i / lanes][i % lanes]));
  // Numbers from 0 on are ordered as their bits.
  largest = __uint_as_float(__reduce_max_sync(whole_warp, __float_as_uint(largest)));
  const float divisor = fmaxf(largest, min_scale), reciprocal = __frcp_rn(divisor);
#pragma unroll
  for (int half = 0; half < halves; ++half) {
    uint32_t made[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) made[i] = tables.code_of<is_signed>(quotient(values[half][i], divisor, reciprocal));
    const uint32_t low = __byte_perm(made[0], made[1], 0x0073), high = __byte_perm(made[2], made[3], 0x0073);
    place.store_codes(codes, __byte_perm(low, high, 0x5410), half);
  }
  return divisor;
}

// Gradients of this lane, of both halves.
template <typename G>
struct Gradients {
  Vector<G, lanes> at[halves];

  template <bool is_whole>
  __device__ Gradients(const Adam8Tensor& tensor, const Place<is_whole>& place) {
#pragma unroll
    for (int half = 0; half < halves; ++half) at[half] = place.load(static_cast<const G*>(tensor.grad), half);
  }
  __device__ float operator()(int half, int i) const { return widen(at[half].at[i]); }
  __device__ float squares() const {
    float sum = 0.0f;
#pragma unroll
    for (int half = 0; half < halves; ++half)
#pragma unroll
      for (int i = 0; i < lanes; ++i) sum += (*this)(half, i) * (*this)(half, i);
    return sum;
  }
};

// Updates a block of moments; gives the sum of squares of the lane's gradients. All loads stand before the first use of
// one. Every sum of products behind the moments is a fused one, as in the reference.
template <typename P, typename G, bool is_whole>
__device__ float update_block(const AdamFactors& f, float min_scale, const AdamStep& now, const Tables& tables,
                              const Adam8Tensor& tensor, const Place<is_whole>& place) {
  const Gradients<G> gradients(tensor, place);
  const int64_t pair = place.at / eight_bit_block * 2;
  const Vector<float, 2> before_scales = load_vector<2>(tensor.scales + pair);
  const float m_scale = before_scales.at[0], v_scale = before_scales.at[1];
  Vector<P, lanes> params[halves];
  uint32_t m[halves], v[halves];
#pragma unroll
  for (int half = 0; half < halves; ++half) {
    params[half] = place.load(static_cast<const P*>(tensor.param), half);
    m[half] = place.load_codes(tensor.m, half);
    v[half] = place.load_codes(tensor.v, half);
  }
  Elements mean, square;
#pragma unroll
  for (int half = 0; half < halves; ++half) {
    float updated[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      const float p = widen(params[half].at[i]);
      const float g = __fmaf_rn(f.l2, p, __fmul_rn(gradients(half, i), now.scale));
      const float number = tables.number(Tables::Signed, m[half], i),
                  before = __fmul_rn(tables.number(Tables::Unsigned, v[half], i), v_scale);
      mean[half][i] = __fmaf_rn(f.one_minus_beta1, __fmaf_rn(-number, m_scale, g), __fmul_rn(number, m_scale));
      square[half][i] = __fmaf_rn(f.one_minus_beta2, __fmaf_rn(g, g, -before), before);
      if (!is_whole && i >= place.counts[half]) mean[half][i] = square[half][i] = 0.0f;
      updated[i] = now.updated(p, mean[half][i], square[half][i]);
    }
    round_parameters<P>(tensor.rounding, now.number, updated, place.at + half * half_block);
    Vector<P, lanes> stored;
#pragma unroll
    for (int i = 0; i < lanes; ++i) stored.at[i] = narrow<P>(updated[i]);
    place.store(static_cast<P*>(tensor.new_param), stored, half);
  }
  const Vector<float, 2> scales{store_moments<true>(tensor.new_m, mean, min_scale, tables, place),
                                store_moments<false>(tensor.new_v, square, min_scale, tables, place)};
  if (threadIdx.x % warp_threads == 0) store_vector(tensor.new_scales + pair, scales);
  return gradients.squares();
}

// Brings what update_block reads of a whole block of moments into the L2 cache.
template <typename P, typename G>
__device__ void prefetch_block(const Adam8Tensor& tensor, const Place<true>& place) {
  const auto prefetch = [&](const auto* from) {
#pragma unroll
    for (int half = 0; half < halves; ++half)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from + place.at + half * half_block)));
  };
  prefetch(static_cast<const P*>(tensor.param));
  prefetch(static_cast<const G*>(tensor.grad));
  prefetch(tensor.m);
  prefetch(tensor.v);
}

// The same where everything stays as it was.
template <typename P, typename G>
__device__ float keep_block(const Adam8Tensor& tensor, const Place<false>& place) {
  const auto keep = [&](auto* to, const auto* from) {
    if (to == from) return;
    for (int half = 0; half < halves; ++half) place.store(to, place.load(from, half), half);
  };
  const Gradients<G> gradients(tensor, place);
  keep(static_cast<P*>(tensor.new_param), static_cast<const P*>(tensor.param));
  keep(tensor.new_m, tensor.m);
  keep(tensor.new_v, tensor.v);
  if (threadIdx.x % warp_threads == 0) {
    const int64_t pair = place.at / eight_bit_block * 2;
    store_vector(tensor.new_scales + pair, load_vector<2>(tensor.scales + pair));
  }
  return gradients.squares();
}

// Fetches the first two blocks of a warp's first run, about as much as memory brings while the tables are made.
template <typename P, typename G>
__device__ void prefetch_run(const Adam8Table& table, unsigned run) {
  const int number = table.runs.tensor_of(run);
  const Adam8Tensor& tensor = table.tensors[number];
  const int64_t begin = int64_t{run - table.runs.first[number]} * norm_block;
#pragma unroll
  for (int block = 1; block <= 2; ++block) {
    const int64_t end = begin + block * eight_bit_block;
    if (end <= tensor.elements) prefetch_block<P, G>(tensor, Place<true>(end - eight_bit_block, tensor.elements));
  }
}

template <typename P, typename G>
__global__ void __launch_bounds__(threads, 1)
    adam_8bit_kernel(const __grid_constant__ AdamFactors f, float min_scale, const __grid_constant__ AdamCall call,
                     const __grid_constant__ DynamicMaps maps, const __grid_constant__ Adam8Table table) {
  extern __shared__ float4 shared[];
  auto& tables = *reinterpret_cast<Tables*>(shared);
  // The shuffle tells the compiler that a warp's threads agree.
  const unsigned lane = threadIdx.x % warp_threads, warp = __shfl_sync(whole_warp, threadIdx.x / warp_threads, 0);
  // Runs go to the multiprocessors by turns, so that all have a share of the last ones.
  const unsigned first_run = warp * gridDim.x + blockIdx.x;
  if (first_run < table.runs.blocks()) prefetch_run<P, G>(table, first_run);
  tables.make(maps);
  const bool skips = call.skip && *call.skip;
  const AdamStep now(f, call);
  for (unsigned run = first_run; run < table.runs.blocks(); run += gridDim.x * warps) {
    const int number = table.runs.tensor_of(run);
    const Adam8Tensor& tensor = table.tensors[number];
    const int64_t of_tensor = run - table.runs.first[number], begin = of_tensor * norm_block;
    float squares = 0.0f;
    for (int64_t first = begin; first < begin + norm_block && first < tensor.elements; first += eight_bit_block)
      if (skips)
        squares += keep_block<P, G>(tensor, Place<false>(first, tensor.elements));
      else if (first + eight_bit_block <= tensor.elements)
        squares += update_block<P, G>(f, min_scale, now, tables, tensor, Place<true>(first, tensor.elements));
      else
        squares += update_block<P, G>(f, min_scale, now, tables, tensor, Place<false>(first, tensor.elements));
    if (!tensor.norms) continue;
    squares = warp_reduce(squares, Add());
    if (lane == 0) tensor.norms[of_tensor] = sqrtf(squares);
  }
}

struct Launch {
  AdamFactors factors;
  const AdamCall& call;
  const DynamicMaps& maps;
  float min_scale;
  int multiprocessors;
  cudaStream_t stream;
};

// As many tensors as a table holds.
template <typename P, typename G>
cudaError_t launch_some(const Launch& launch, const Adam8Tensor* tensors, int count) {
  Adam8Table table{};
  for (int i = 0; i < count; ++i) {
    table.tensors[i] = tensors[i];
    table.runs.add(divide_up(tensors[i].elements, norm_block));
  }
  constexpr auto kernel = adam_8bit_kernel<P, G>;
  const unsigned runs = table.runs.blocks();
  if (runs == 0) return cudaSuccess;
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Tables));
      error != cudaSuccess)
    return error;
  kernel<<<std::min(runs, static_cast<unsigned>(launch.multiprocessors)), threads, sizeof(Tables), launch.stream>>>(
      launch.factors, launch.min_scale, launch.call, launch.maps, table);
  return cudaGetLastError();
}

template <typename P, typename G>
cudaError_t launch_all(const Launch& launch, const Adam8Tensor* tensors, int count) {
  for (; count > 0; tensors += table_size, count -= table_size)
    if (cudaError_t error = launch_some<P, G>(launch, tensors, std::min(count, table_size)); error != cudaSuccess)
      return error;
  return cudaSuccess;
}

}  // namespace

cudaError_t adam_8bit(const AdamCall& call, const DynamicMaps& maps, float min_scale, const Adam8Tensor* tensors,
                      int count, cudaStream_t stream) {
  int multiprocessors = 0;
  if (cudaError_t error = count_multiprocessors(multiprocessors); error != cudaSuccess) return error;
  const Launch launch{AdamFactors(call), call, maps, min_scale, multiprocessors, stream};
  if (call.param_type != Scalar::F32)
    return with_bf16_or_f32(call.grad_type, [&](auto* grad) {
      return launch_all<bf16, std::remove_pointer_t<decltype(grad)>>(launch, tensors, count);
    });
  return with_f32_math(call.grad_type, [&](auto* grad) {
    return launch_all<float, std::remove_pointer_t<decltype(grad)>>(launch, tensors, count);
  });
}

}  // namespace plimsoll::cuda
