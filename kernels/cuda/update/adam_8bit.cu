#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/update/block_table.cuh"
#include "kernels/cuda/update/rounding.cuh"
#include "kernels/cuda/update/update.h"
#include "kernels/dynamic_map.h"

#include <algorithm>
#include <cmath>

// Serves adamw_8bit. Dequantises, updates and quantises in one pass: 16.06 bytes for an f32 parameter with an f32
// gradient, each read and written once. A warp takes norm_block elements, a block of moments at a time and eight
// elements a lane, so that a block's scale and the norm are reductions of one warp and no warp waits for another. Maps
// lie in shared memory, and codes are found by arithmetic and one look at a threshold. Thread blocks stay and take more
// work, since each makes the thresholds for itself.

namespace plimsoll::cuda {
namespace {

constexpr int lanes = 8, threads = 512, warps = threads / warp_threads;
constexpr int max_blocks = 264;  // two for each multiprocessor of the largest cards
static_assert(lanes * warp_threads == eight_bit_block && norm_block % eight_bit_block == 0);
constexpr int table_size = 16;  // with the maps it keeps the parameters of a launch below 4 KB

template <int capacity>
struct Adam8Table {
  BlockTable<capacity> runs;  // of norm_block elements
  Adam8Tensor tensors[capacity];
};

struct Factors {
  double log_beta1, log_beta2;
  float one_minus_beta1, one_minus_beta2, eps, decay, l2, min_scale;
};

// What depends on the step alone.
struct StepFactors {
  float step_size, inverse_root2, keep, scale;
  int64_t step;
};

struct SharedMaps {
  float of_signed[256], of_unsigned[256], signed_thresholds[256], unsigned_thresholds[256];
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

__device__ void load_maps(SharedMaps& shared, const DynamicMaps& maps) {
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += threads) {
    shared.of_signed[i] = maps.of_signed[i];
    shared.of_unsigned[i] = maps.of_unsigned[i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 512; i += threads) {
    if (i < 256)
      shared.signed_thresholds[i] = threshold_above(shared.of_signed, i);
    else
      shared.unsigned_thresholds[i - 256] = threshold_above(shared.of_unsigned, i - 256);
  }
  __syncthreads();
}

// The first `count` of a lane's elements; the others are 0.
template <typename T>
__device__ Vector<T, lanes> load_some(const T* from, int count) {
  if (count == lanes) return load_vector<lanes>(from);
  Vector<T, lanes> values;
#pragma unroll
  for (int i = 0; i < lanes; ++i) values.at[i] = i < count ? from[i] : T{};
  return values;
}

template <typename T>
__device__ void store_some(T* to, const Vector<T, lanes>& values, int count) {
  if (count == lanes) return store_vector(to, values);
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    if (i < count) to[i] = values.at[i];
}

template <typename T>
__device__ void keep_some(T* to, const T* from, int count) {
  if (to != from && count > 0) store_some(to, load_some(from, count), count);
}

// x / divisor rounded once, by the reciprocal and what is left over.
__device__ float quotient(float x, float divisor, float reciprocal) {
  const float near = __fmul_rn(x, reciprocal);
  return __fmaf_rn(__fmaf_rn(-near, divisor, x), reciprocal, near);
}

// Gives the block's scale.
template <bool is_signed>
__device__ float store_moments(uint8_t* codes, const float (&values)[lanes], float min_scale, const float* thresholds,
                               int count) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < lanes; ++i) largest = fmaxf(largest, fabsf(values[i]));
  const float divisor = fmaxf(warp_reduce(largest, Larger()), min_scale), reciprocal = __frcp_rn(divisor);
  Vector<uint8_t, lanes> made;
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    made.at[i] = static_cast<uint8_t>(dynamic_code<is_signed>(quotient(values[i], divisor, reciprocal), thresholds));
  if (count > 0) store_some(codes, made, count);
  return divisor;
}

// A block of moments: `at` is this lane's first element and `count` how many of its eight there are. Every sum of
// products behind the moments is a fused one, as in the reference.
template <typename P>
__device__ void update_block(const Factors& f, const StepFactors& now, const SharedMaps& maps,
                             const Adam8Tensor& tensor, const float (&gradients)[lanes], int64_t at, int count) {
  const int64_t block = at / eight_bit_block;
  P* new_param = static_cast<P*>(tensor.new_param) + at;
  const Vector<P, lanes> param = load_some(static_cast<const P*>(tensor.param) + at, count);
  const Vector<uint8_t, lanes> m = load_some(tensor.m + at, count), v = load_some(tensor.v + at, count);
  const Vector<float, 2> before_scales = load_vector<2>(tensor.scales + 2 * block);
  const float m_scale = before_scales.at[0], v_scale = before_scales.at[1];
  float mean[lanes], square[lanes], updated[lanes];
#pragma unroll
  for (int i = 0; i < lanes; ++i) {
    const float p = widen(param.at[i]), g = __fmaf_rn(f.l2, p, __fmul_rn(gradients[i], now.scale));
    const float number = maps.of_signed[m.at[i]], before = __fmul_rn(maps.of_unsigned[v.at[i]], v_scale);
    mean[i] = __fmaf_rn(f.one_minus_beta1, __fmaf_rn(-number, m_scale, g), __fmul_rn(number, m_scale));
    square[i] = __fmaf_rn(f.one_minus_beta2, __fmaf_rn(g, g, -before), before);
    if (i >= count) mean[i] = square[i] = 0.0f;
    const float denominator = sqrtf(square[i]) * now.inverse_root2 + f.eps;
    updated[i] = p * now.keep - __fdividef(now.step_size * mean[i], denominator);
  }
  round_parameters<P>(tensor.rounding, now.step, updated, at);
  Vector<P, lanes> stored;
#pragma unroll
  for (int i = 0; i < lanes; ++i) stored.at[i] = narrow<P>(updated[i]);
  if (count > 0) store_some(new_param, stored, count);
  const Vector<float, 2> scales{
      store_moments<true>(tensor.new_m + at, mean, f.min_scale, maps.signed_thresholds, count),
      store_moments<false>(tensor.new_v + at, square, f.min_scale, maps.unsigned_thresholds, count)};
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

template <typename P, typename G, int capacity>
__global__ void __launch_bounds__(threads, 2)
    adam_8bit_kernel(const __grid_constant__ Factors f, const __grid_constant__ AdamCall call,
                     const __grid_constant__ DynamicMaps maps, const __grid_constant__ Adam8Table<capacity> table) {
  __shared__ SharedMaps shared;
  load_maps(shared, maps);
  const bool skips = call.skip && *call.skip;
  const double step = static_cast<double>(*call.step);
  const float lr = *call.lr;
  // 1 - beta^step without the cancellation
  const float correction1 = -expm1f(static_cast<float>(step * f.log_beta1)),
              correction2 = -expm1f(static_cast<float>(step * f.log_beta2));
  const StepFactors now{lr / correction1, 1.0f / sqrtf(correction2), 1.0f - lr * f.decay,
                        call.scale ? *call.scale : 1.0f, *call.step};
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
  for (unsigned run = blockIdx.x * warps + warp; run < table.runs.blocks(); run += gridDim.x * warps) {
    const int number = table.runs.tensor_of(run);
    const Adam8Tensor& tensor = table.tensors[number];
    const int64_t of_tensor = run - table.runs.first[number], begin = of_tensor * norm_block;
    float squares = 0.0f;
    for (int64_t first = begin; first < begin + norm_block && first < tensor.elements; first += eight_bit_block) {
      const int64_t at = first + lane * lanes, left = tensor.elements - at;
      const int count = left >= lanes ? lanes : left > 0 ? static_cast<int>(left) : 0;
      const Vector<G, lanes> grad = load_some(static_cast<const G*>(tensor.grad) + at, count);
      float gradients[lanes];
#pragma unroll
      for (int i = 0; i < lanes; ++i) {
        gradients[i] = widen(grad.at[i]);
        squares += gradients[i] * gradients[i];
      }
      if (skips)
        keep_block<P>(tensor, at, count);
      else
        update_block<P>(f, now, shared, tensor, gradients, at, count);
    }
    if (!tensor.norms) continue;
    squares = warp_reduce(squares, Add());
    if (lane == 0) tensor.norms[of_tensor] = sqrtf(squares);
  }
}

// As many tensors as a table holds.
template <typename P, typename G, int capacity>
void launch_some(const Factors& factors, const AdamCall& call, const DynamicMaps& maps, const Adam8Tensor* tensors,
                 int count, cudaStream_t stream) {
  Adam8Table<capacity> table{};
  for (int i = 0; i < count; ++i) {
    table.tensors[i] = tensors[i];
    table.runs.add(divide_up(tensors[i].elements, norm_block));
  }
  const unsigned runs = table.runs.blocks(), wanted = (runs + warps - 1) / warps;
  if (runs == 0) return;
  adam_8bit_kernel<P, G, capacity>
      <<<std::min<unsigned>(wanted, max_blocks), threads, 0, stream>>>(factors, call, maps, table);
}

template <typename P, typename G>
cudaError_t launch(const Factors& factors, const AdamCall& call, const DynamicMaps& maps, const Adam8Tensor* tensors,
                   int count, cudaStream_t stream) {
  if (count == 1) launch_some<P, G, 1>(factors, call, maps, tensors, 1, stream);
  for (; count > 1; tensors += table_size, count -= table_size)
    launch_some<P, G, table_size>(factors, call, maps, tensors, std::min(count, table_size), stream);
  return cudaGetLastError();
}

}  // namespace

cudaError_t adam_8bit(const AdamCall& call, const DynamicMaps& maps, float min_scale, const Adam8Tensor* tensors,
                      int count, cudaStream_t stream) {
  const Factors factors{std::log(call.beta1),
                        std::log(call.beta2),
                        static_cast<float>(1 - call.beta1),
                        static_cast<float>(1 - call.beta2),
                        static_cast<float>(call.eps),
                        call.decoupled ? static_cast<float>(call.weight_decay) : 0.0f,
                        call.decoupled ? 0.0f : static_cast<float>(call.weight_decay),
                        min_scale};
  if (call.param_type != Scalar::F32)
    return with_bf16_or_f32(call.grad_type, [&](auto* grad) {
      return launch<bf16, std::remove_pointer_t<decltype(grad)>>(factors, call, maps, tensors, count, stream);
    });
  return with_f32_math(call.grad_type, [&](auto* grad) {
    return launch<float, std::remove_pointer_t<decltype(grad)>>(factors, call, maps, tensors, count, stream);
  });
}

}  // namespace plimsoll::cuda
