#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/update/adam_step.cuh"
#include "kernels/cuda/update/block_table.cuh"
#include "kernels/cuda/update/rounding.cuh"
#include "kernels/cuda/update/update.h"
#include "kernels/dynamic_map.h"

#include <algorithm>

// Serves adamw_8bit. Dequantises, updates and quantises in one pass: 16.06 bytes for an f32 parameter with an f32
// gradient, each read and written once. A warp takes norm_block elements, a block of moments at a time and eight
// elements a lane, so that a block's scale and the norm are reductions of one warp and no warp waits for another. Maps
// lie in shared memory, and codes are found by arithmetic and one look at a threshold. Thread blocks stay and take more
// work, since each makes the maps for itself.

namespace plimsoll::cuda {
namespace {

constexpr int lanes = 8;
static_assert(lanes * warp_threads == eight_bit_block && norm_block % eight_bit_block == 0);
constexpr int table_size = 16;  // with the maps it keeps the parameters of a launch below 4 KB

struct Adam8Table {
  BlockTable<table_size> runs;  // of norm_block elements
  Adam8Tensor tensors[table_size];
};

// What every thread looks up. Where shared memory is large, each lane of a warp has a copy of its own in a bank of its
// own; where it is not, memory is what the kernel waits for, and smaller blocks with one copy do.
template <int copies_>
struct Maps {
  static constexpr int copies = copies_, threads = copies > 1 ? 1024 : 512, blocks = copies > 1 ? 1 : 2;
  static constexpr int warps = threads / warp_threads;
  enum { Signed, Unsigned, SignedThresholds, UnsignedThresholds, count };

  float tables[count][256 * copies];
  // Of sizes up to each power of ten, the last of which stands twice, for 1 itself. To the nearest whole number each
  // gives the place's whole number a quarter below it.
  CodeLine lines[2][code_decades + 1];

  __device__ float at(int table, int code) const { return tables[table][code * copies + threadIdx.x % copies]; }
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

template <bool is_signed, int decade = 0>
__device__ CodeLine line_of(int which) {
  if constexpr (decade + 1 < code_decades)
    if (which > decade) return line_of<is_signed, decade + 1>(which);
  const CodeLine line = code_line<is_signed, decade>();
  return {line.slope, line.start - 0.75f};
}

template <int copies_>
__device__ void Maps<copies_>::make(const DynamicMaps& maps) {
  for (int i = static_cast<int>(threadIdx.x); i < 256 * count; i += threads) {
    const int table = i / 256, code = i % 256;
    const float* const map = table % 2 == 0 ? maps.of_signed : maps.of_unsigned;
    const float value = table < SignedThresholds ? map[code] : threshold_above(map, code);
    // Neighbouring threads begin at neighbouring copies: no two write to one bank.
    for (int copy = 0; copy < copies; ++copy)
      tables[table][code * copies + (copy + static_cast<int>(threadIdx.x)) % copies] = value;
  }
  if (threadIdx.x <= code_decades) {
    lines[0][threadIdx.x] = line_of<true>(static_cast<int>(threadIdx.x));
    lines[1][threadIdx.x] = line_of<false>(static_cast<int>(threadIdx.x));
  }
  __syncthreads();
}

__device__ inline float log2_approx(float x) {
  float log;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log) : "f"(x));
  return log;
}

// How far above `least` the nearest whole number is; 0 where it is below.
__device__ inline int rounded_from(float x, int least) {
  constexpr float of_whole = 12582912.0f;  // 1.5 * 2^23: floats beside it are one apart
  const float first = of_whole + static_cast<float>(least);
  return __float_as_int(fmaxf(__fadd_rn(x, of_whole), first)) - __float_as_int(first);
}

// dynamic_code of kernels/dynamic_map.h, with the line of the size's decade looked up instead of the least of all: at a
// power of ten the lines beside it have one place, so it is the same whichever is taken.
template <bool is_signed, int copies>
__device__ int code_of(const Maps<copies>& maps, float share) {
  constexpr float log10_of_2 = 0.30103f;
  const float size = fabsf(share);
  const int decade = rounded_from(fmaf(log2_approx(size), log10_of_2, -0.5f), -code_decades);
  const CodeLine line = maps.lines[is_signed ? 0 : 1][decade];
  int code = rounded_from(fmaf(line.slope, size, line.start), 0);
  if (is_signed && share < 0) code = max(253 - code, 0);  // codes of opposite numbers add up to 254; -1 has none
  return code + (share >= maps.at(is_signed ? maps.SignedThresholds : maps.UnsignedThresholds, code) ? 1 : 0);
}

// The first `count` of a lane's elements, of which it has all where the block is whole; the others are 0.
template <bool is_whole, typename T>
__device__ Vector<T, lanes> load_some(const T* from, int count) {
  if constexpr (is_whole) {
    return load_vector<lanes>(from);
  } else {
    Vector<T, lanes> values;
#pragma unroll
    for (int i = 0; i < lanes; ++i) values.at[i] = i < count ? from[i] : T{};
    return values;
  }
}

template <bool is_whole, typename T>
__device__ void store_some(T* to, const Vector<T, lanes>& values, int count) {
  if constexpr (is_whole) {
    store_vector(to, values);
  } else {
#pragma unroll
    for (int i = 0; i < lanes; ++i)
      if (i < count) to[i] = values.at[i];
  }
}

template <typename T>
__device__ void keep_some(T* to, const T* from, int count) {
  if (to != from && count > 0) store_some<false>(to, load_some<false>(from, count), count);
}

// x / divisor rounded once, by the reciprocal and what is left over.
__device__ float quotient(float x, float divisor, float reciprocal) {
  const float near = __fmul_rn(x, reciprocal);
  return __fmaf_rn(__fmaf_rn(-near, divisor, x), reciprocal, near);
}

// Gives the block's scale.
template <bool is_signed, bool is_whole, int copies>
__device__ float store_moments(uint8_t* codes, const float (&values)[lanes], float min_scale, const Maps<copies>& maps,
                               int count) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < lanes; ++i) largest = fmaxf(largest, fabsf(values[i]));
  const float divisor = fmaxf(warp_reduce(largest, Larger()), min_scale), reciprocal = __frcp_rn(divisor);
  Vector<uint8_t, lanes> made;
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    made.at[i] = static_cast<uint8_t>(code_of<is_signed>(maps, quotient(values[i], divisor, reciprocal)));
  store_some<is_whole>(codes, made, count);
  return divisor;
}

// A block of moments: `at` is this lane's first element and `count` how many of its eight there are. Every sum of
// products behind the moments is a fused one, as in the reference.
template <bool is_whole, typename P, int copies>
__device__ void update_block(const AdamFactors& f, float min_scale, const AdamStep& now, const Maps<copies>& maps,
                             const Adam8Tensor& tensor, const float (&gradients)[lanes], int64_t at, int count) {
  const int64_t block = at / eight_bit_block;
  P* new_param = static_cast<P*>(tensor.new_param) + at;
  const Vector<P, lanes> param = load_some<is_whole>(static_cast<const P*>(tensor.param) + at, count);
  const Vector<uint8_t, lanes> m = load_some<is_whole>(tensor.m + at, count),
                               v = load_some<is_whole>(tensor.v + at, count);
  const Vector<float, 2> before_scales = load_vector<2>(tensor.scales + 2 * block);
  const float m_scale = before_scales.at[0], v_scale = before_scales.at[1];
  float mean[lanes], square[lanes], updated[lanes];
#pragma unroll
  for (int i = 0; i < lanes; ++i) {
    const float p = widen(param.at[i]), g = __fmaf_rn(f.l2, p, __fmul_rn(gradients[i], now.scale));
    const float number = maps.at(maps.Signed, m.at[i]), before = __fmul_rn(maps.at(maps.Unsigned, v.at[i]), v_scale);
    mean[i] = __fmaf_rn(f.one_minus_beta1, __fmaf_rn(-number, m_scale, g), __fmul_rn(number, m_scale));
    square[i] = __fmaf_rn(f.one_minus_beta2, __fmaf_rn(g, g, -before), before);
    if (!is_whole && i >= count) mean[i] = square[i] = 0.0f;
    updated[i] = now.updated(p, mean[i], square[i]);
  }
  round_parameters<P>(tensor.rounding, now.number, updated, at);
  Vector<P, lanes> stored;
#pragma unroll
  for (int i = 0; i < lanes; ++i) stored.at[i] = narrow<P>(updated[i]);
  store_some<is_whole>(new_param, stored, count);
  const Vector<float, 2> scales{store_moments<true, is_whole>(tensor.new_m + at, mean, min_scale, maps, count),
                                store_moments<false, is_whole>(tensor.new_v + at, square, min_scale, maps, count)};
  if (threadIdx.x % warp_threads == 0) store_vector(tensor.new_scales + 2 * block, scales);
}

template <typename P>
__device__ void keep_block(const Adam8Tensor& tensor, int64_t at, int count) {
  keep_some(static_cast<P*>(tensor.new_param) + at, static_cast<const P*>(tensor.param) + at, count);
  keep_some(tensor.new_m + at, tensor.m + at, count);
  keep_some(tensor.new_v + at, tensor.v + at, count);
  if (threadIdx.x % warp_threads != 0) return;
  const int64_t pair = at / eight_bit_block * 2;
  store_vector(tensor.new_scales + pair, load_vector<2>(tensor.scales + pair));
}

// Updates a block of moments, or keeps it; gives the sum of squares of the lane's gradients.
template <bool is_whole, typename P, typename G, int copies>
__device__ float take_block(const AdamFactors& f, float min_scale, const AdamStep& now, bool skips,
                            const Maps<copies>& maps, const Adam8Tensor& tensor, int64_t at, int count) {
  const Vector<G, lanes> grad = load_some<is_whole>(static_cast<const G*>(tensor.grad) + at, count);
  float gradients[lanes], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < lanes; ++i) {
    gradients[i] = widen(grad.at[i]);
    squares += gradients[i] * gradients[i];
  }
  if (skips)
    keep_block<P>(tensor, at, count);
  else
    update_block<is_whole, P>(f, min_scale, now, maps, tensor, gradients, at, count);
  return squares;
}

template <typename P, typename G, int copies>
__global__ void __launch_bounds__(Maps<copies>::threads, Maps<copies>::blocks)
    adam_8bit_kernel(const __grid_constant__ AdamFactors f, float min_scale, const __grid_constant__ AdamCall call,
                     const __grid_constant__ DynamicMaps of_call, const __grid_constant__ Adam8Table table) {
  extern __shared__ float4 shared[];
  auto& maps = *reinterpret_cast<Maps<copies>*>(shared);
  maps.make(of_call);
  constexpr unsigned warps = Maps<copies>::warps;
  const bool skips = call.skip && *call.skip;
  const AdamStep now(f, call);
  const unsigned lane = threadIdx.x % warp_threads, warp = threadIdx.x / warp_threads;
  for (unsigned run = blockIdx.x * warps + warp; run < table.runs.blocks(); run += gridDim.x * warps) {
    const int number = table.runs.tensor_of(run);
    const Adam8Tensor& tensor = table.tensors[number];
    const int64_t of_tensor = run - table.runs.first[number], begin = of_tensor * norm_block;
    float squares = 0.0f;
    for (int64_t first = begin; first < begin + norm_block && first < tensor.elements; first += eight_bit_block) {
      const int64_t at = first + lane * lanes, left = tensor.elements - at;
      if (first + eight_bit_block <= tensor.elements)
        squares += take_block<true, P, G>(f, min_scale, now, skips, maps, tensor, at, lanes);
      else
        squares += take_block<false, P, G>(f, min_scale, now, skips, maps, tensor, at,
                                           static_cast<int>(max(int64_t{0}, min(left, int64_t{lanes}))));
    }
    if (!tensor.norms) continue;
    squares = warp_reduce(squares, Add());
    if (lane == 0) tensor.norms[of_tensor] = sqrtf(squares);
  }
}

// What a launch needs to know of the card.
struct Card {
  int multiprocessors = 0, shared_bytes = 0;

  cudaError_t read() {
    int device = 0;
    if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
    if (cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
        error != cudaSuccess)
      return error;
    return cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
};

struct Launch {
  AdamFactors factors;
  const AdamCall& call;
  const DynamicMaps& maps;
  float min_scale;
  Card card;
  cudaStream_t stream;
};

// As many tensors as a table holds.
template <typename P, typename G, int copies>
cudaError_t launch_some(const Launch& launch, const Adam8Tensor* tensors, int count) {
  Adam8Table table{};
  for (int i = 0; i < count; ++i) {
    table.tensors[i] = tensors[i];
    table.runs.add(divide_up(tensors[i].elements, norm_block));
  }
  constexpr auto kernel = adam_8bit_kernel<P, G, copies>;
  constexpr int bytes = sizeof(Maps<copies>);
  constexpr unsigned warps = Maps<copies>::warps;
  const unsigned runs = table.runs.blocks(), wanted = (runs + warps - 1) / warps;
  if (runs == 0) return cudaSuccess;
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      error != cudaSuccess)
    return error;
  const unsigned most = static_cast<unsigned>(launch.card.multiprocessors * Maps<copies>::blocks);
  kernel<<<std::min(wanted, most), Maps<copies>::threads, bytes, launch.stream>>>(launch.factors, launch.min_scale,
                                                                                  launch.call, launch.maps, table);
  return cudaGetLastError();
}

template <typename P, typename G, int copies>
cudaError_t launch_all(const Launch& launch, const Adam8Tensor* tensors, int count) {
  for (; count > 0; tensors += table_size, count -= table_size)
    if (cudaError_t error = launch_some<P, G, copies>(launch, tensors, std::min(count, table_size));
        error != cudaSuccess)
      return error;
  return cudaSuccess;
}

template <typename P, typename G>
cudaError_t launch_for_card(const Launch& launch, const Adam8Tensor* tensors, int count) {
  if (launch.card.shared_bytes >= static_cast<int>(sizeof(Maps<warp_threads>)))
    return launch_all<P, G, warp_threads>(launch, tensors, count);
  return launch_all<P, G, 1>(launch, tensors, count);
}

}  // namespace

cudaError_t adam_8bit(const AdamCall& call, const DynamicMaps& maps, float min_scale, const Adam8Tensor* tensors,
                      int count, cudaStream_t stream) {
  Launch launch{AdamFactors(call), call, maps, min_scale, {}, stream};
  if (cudaError_t error = launch.card.read(); error != cudaSuccess) return error;
  if (call.param_type != Scalar::F32)
    return with_bf16_or_f32(call.grad_type, [&](auto* grad) {
      return launch_for_card<bf16, std::remove_pointer_t<decltype(grad)>>(launch, tensors, count);
    });
  return with_f32_math(call.grad_type, [&](auto* grad) {
    return launch_for_card<float, std::remove_pointer_t<decltype(grad)>>(launch, tensors, count);
  });
}

}  // namespace plimsoll::cuda
