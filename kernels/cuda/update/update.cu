#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/update/adam_step.cuh"
#include "kernels/cuda/update/block_table.cuh"
#include "kernels/cuda/update/rounding.cuh"
#include "kernels/cuda/update/update.h"

#include <algorithm>

// Serves adamw, sgd and running_update. PyTorch's update rules. A thread updates four consecutive elements: 28 bytes
// per f32 parameter with its moments, each read and written once. What depends on the step alone every thread computes
// for itself while its elements arrive. A launch takes as many tensors as its parameters hold: biases and the like are
// too small to fill a launch of their own.

namespace plimsoll::cuda {
namespace {

constexpr int lanes = 4;
static_assert(lanes * block_threads == norm_block);
constexpr int table_size = 36;  // keeps the parameters of a launch below 4 KB; one tensor costs less to pass

template <typename Tensor, int capacity>
struct UpdateTable {
  BlockTable<capacity> blocks;
  Tensor tensors[capacity];
};

// The work of a block: one of the tensors, and the number of the block within it.
template <typename Tensor>
struct Work {
  const Tensor& tensor;
  int64_t block;

  // This thread's first element, which may be past the last.
  __device__ int64_t place() const { return (block * block_threads + threadIdx.x) * lanes; }
};

template <typename Tensor, int capacity>
__device__ Work<Tensor> find_work(const UpdateTable<Tensor, capacity>& table) {
  const int number = table.blocks.tensor_of(blockIdx.x);
  return {table.tensors[number], blockIdx.x - table.blocks.first[number]};
}

// Calls launch(table) for one tensor, or for as many at a time as a table holds.
template <typename Tensor, typename Launch>
cudaError_t launch_in_tables(const Tensor* tensors, int count, Launch launch) {
  auto launch_some = [&](auto table, int some) {
    for (int i = 0; i < some; ++i) {
      table.tensors[i] = tensors[i];
      table.blocks.add(divide_up(tensors[i].elements, int64_t{lanes} * block_threads));
    }
    if (table.blocks.blocks() > 0) launch(table);
  };
  if (count == 1) launch_some(UpdateTable<Tensor, 1>{}, 1);
  for (; count > 1; tensors += table_size, count -= table_size)
    launch_some(UpdateTable<Tensor, table_size>{}, std::min(count, table_size));
  return cudaGetLastError();
}

// Loads up to four elements; those past the end are 0.
template <typename T>
__device__ void load_lanes(float (&to)[lanes], const T* from, int64_t at, int64_t elements) {
  if (at + lanes <= elements) {
    const Vector<T, lanes> values = load_vector<lanes>(from + at);
#pragma unroll
    for (int i = 0; i < lanes; ++i) to[i] = widen(values.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < lanes; ++i) to[i] = at + i < elements ? widen(from[at + i]) : 0.0f;
  }
}

template <typename T>
__device__ void store_lanes(T* to, const float (&values)[lanes], int64_t at, int64_t elements) {
  if (at + lanes <= elements) {
    Vector<T, lanes> narrow_values;
#pragma unroll
    for (int i = 0; i < lanes; ++i) narrow_values.at[i] = narrow<T>(values[i]);
    store_vector(to + at, narrow_values);
  } else {
#pragma unroll
    for (int i = 0; i < lanes; ++i)
      if (at + i < elements) to[at + i] = narrow<T>(values[i]);
  }
}

template <typename T>
__device__ void keep_lanes(T* to, const T* from, int64_t at, int64_t elements) {
  if (to == from) return;
  for (int i = 0; i < lanes; ++i)
    if (at + i < elements) to[at + i] = from[at + i];
}

// visit(element of the block, its place in a turned tensor), for all elements of the block that begins at `first`.
// Neighbouring threads take neighbouring channels, which are neighbours in the turned tensor.
template <typename Visit>
__device__ void for_turned(const TurnedWeight& weight, int64_t first, int64_t elements, Visit visit) {
  const auto begin = static_cast<uint32_t>(first), end = static_cast<uint32_t>(min(first + norm_block, elements));
  const uint32_t channels = weight.channels, taps = weight.taps;
  const uint32_t first_channel = begin / taps, count = (end - 1) / taps + 1 - first_channel;  // of all rows together
  for (uint32_t i = threadIdx.x; i < count * taps; i += block_threads) {
    const uint32_t tap = i / count, channel = first_channel + i - tap * count, at = channel * taps + tap;
    if (at < begin || at >= end) continue;
    const uint32_t row = channel / channels;
    visit(at - begin, (row * taps + tap) * channels + channel - row * channels);
  }
}

// The thread's lanes of the gradient; those past the end are 0. All threads of a block call it.
template <typename G, typename Tensor>
__device__ void load_gradient(float (&to)[lanes], const Work<Tensor>& work, float* staged) {
  const Tensor& tensor = work.tensor;
  const G* grad = static_cast<const G*>(tensor.grad);
  const int64_t at = work.place();
  if (!tensor.turned.grad) {
    if (at < tensor.elements) load_lanes(to, grad, at, tensor.elements);
    return;
  }
  for_turned(tensor.turned, work.block * norm_block, tensor.elements,
             [&](uint32_t element, uint32_t place) { staged[element] = widen(grad[place]); });
  __syncthreads();
#pragma unroll
  for (int i = 0; i < lanes; ++i) to[i] = at + i < tensor.elements ? staged[threadIdx.x * lanes + i] : 0.0f;
}

template <typename C, typename Tensor>
__device__ void store_copy_as(const Work<Tensor>& work, const float (&param)[lanes], float* staged) {
  const Tensor& tensor = work.tensor;
  C* copy = static_cast<C*>(tensor.copy);
  const int64_t at = work.place();
  if (!tensor.turned.copy) {
    if (at < tensor.elements) store_lanes(copy, param, at, tensor.elements);
    return;
  }
  // A thread wrote and read the same elements before.
#pragma unroll
  for (int i = 0; i < lanes; ++i) staged[threadIdx.x * lanes + i] = param[i];
  __syncthreads();
  for_turned(tensor.turned, work.block * norm_block, tensor.elements,
             [&](uint32_t element, uint32_t place) { copy[place] = narrow<C>(staged[element]); });
}

// The 16-bit copy of an f32 parameter; other parameters have none. All threads of a block call it.
template <typename P, typename Tensor>
__device__ void store_copy(Scalar type, const Work<Tensor>& work, const float (&param)[lanes], float* staged) {
  if (!std::is_same_v<P, float> || !work.tensor.copy) return;
  if (type == Scalar::F16)
    store_copy_as<f16>(work, param, staged);
  else
    store_copy_as<bf16>(work, param, staged);
}

// The norm of a block's part of the gradient, of which every thread has its lanes.
__device__ void store_norm(float* norm, const float (&gradient)[lanes]) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < lanes; ++i) squares += gradient[i] * gradient[i];
  squares = block_reduce(squares, Add(), 0.0f);
  if (threadIdx.x == 0) *norm = sqrtf(squares);
}

// `p` becomes the new parameter.
template <typename P, typename M>
__device__ void adam_lanes(const AdamFactors& f, const AdamCall& call, const AdamTensor& tensor, float (&p)[lanes],
                           const float (&g)[lanes], int64_t at) {
  const P* param = static_cast<const P*>(tensor.param);
  const M *m = static_cast<const M*>(tensor.m), *v = static_cast<const M*>(tensor.v);
  P* new_param = static_cast<P*>(tensor.new_param);
  M *new_m = static_cast<M*>(tensor.new_m), *new_v = static_cast<M*>(tensor.new_v);
  float mean[lanes], square[lanes];
  load_lanes(p, param, at, tensor.elements);
  if (call.skip && *call.skip) {
    keep_lanes(new_param, param, at, tensor.elements);
    keep_lanes(new_m, m, at, tensor.elements);
    keep_lanes(new_v, v, at, tensor.elements);
    return;
  }
  load_lanes(mean, m, at, tensor.elements);
  load_lanes(square, v, at, tensor.elements);
  const AdamStep step(f, call);
#pragma unroll
  for (int i = 0; i < lanes; ++i) {
    const float gradient = g[i] * step.scale + f.l2 * p[i];
    mean[i] += (gradient - mean[i]) * f.one_minus_beta1;
    square[i] = square[i] * f.beta2 + gradient * gradient * f.one_minus_beta2;
    p[i] = step.updated(p[i], mean[i], square[i]);
  }
  round_parameters<P>(tensor.rounding, step.number, p, at);
  store_lanes(new_param, p, at, tensor.elements);
  store_lanes(new_m, mean, at, tensor.elements);
  store_lanes(new_v, square, at, tensor.elements);
}

template <typename P, typename G, typename M, int capacity>
__global__ void __launch_bounds__(block_threads)
    adam_kernel(AdamFactors f, AdamCall call, const __grid_constant__ UpdateTable<AdamTensor, capacity> table) {
  __shared__ float staged[norm_block];
  const Work work = find_work(table);
  const int64_t at = work.place();
  const auto& tensor = work.tensor;
  float g[lanes] = {}, p[lanes] = {};
  load_gradient<G>(g, work, staged);
  if (at < tensor.elements) adam_lanes<P, M>(f, call, tensor, p, g, at);
  store_copy<P>(call.copy_type, work, p, staged);
  if (tensor.norms) store_norm(tensor.norms + work.block, g);
}

// As adam_lanes.
template <typename P>
__device__ void sgd_lanes(const SgdCall& call, const SgdTensor& tensor, float (&p)[lanes], const float (&g)[lanes],
                          int64_t at) {
  const P *param = static_cast<const P*>(tensor.param), *momentum = static_cast<const P*>(tensor.momentum);
  P *new_param = static_cast<P*>(tensor.new_param), *new_momentum = static_cast<P*>(tensor.new_momentum);
  float buffer[lanes] = {};
  load_lanes(p, param, at, tensor.elements);
  if (call.skip && *call.skip) {
    keep_lanes(new_param, param, at, tensor.elements);
    if (momentum) keep_lanes(new_momentum, momentum, at, tensor.elements);
    return;
  }
  if (momentum) load_lanes(buffer, momentum, at, tensor.elements);
  const float lr = *call.lr, scale = call.scale ? *call.scale : 1.0f, gain = 1.0f - call.dampening;
#pragma unroll
  for (int i = 0; i < lanes; ++i) {
    float direction = g[i] * scale + call.weight_decay * p[i];
    if (momentum) {
      buffer[i] = buffer[i] * call.momentum_factor + direction * gain;
      direction = call.nesterov ? direction + call.momentum_factor * buffer[i] : buffer[i];
    }
    p[i] -= lr * direction;
  }
  store_lanes(new_param, p, at, tensor.elements);
  if (momentum) store_lanes(new_momentum, buffer, at, tensor.elements);
}

template <typename P, typename G, int capacity>
__global__ void __launch_bounds__(block_threads)
    sgd_kernel(SgdCall call, const __grid_constant__ UpdateTable<SgdTensor, capacity> table) {
  __shared__ float staged[norm_block];
  const Work work = find_work(table);
  const int64_t at = work.place();
  const auto& tensor = work.tensor;
  float g[lanes] = {}, p[lanes] = {};
  load_gradient<G>(g, work, staged);
  if (at < tensor.elements) sgd_lanes<P>(call, tensor, p, g, at);
  store_copy<P>(call.copy_type, work, p, staged);
  if (tensor.norms) store_norm(tensor.norms + work.block, g);
}

template <int capacity>
__global__ void __launch_bounds__(block_threads)
    running_update_kernel(const __grid_constant__ UpdateTable<RunningTensor, capacity> table) {
  const Work work = find_work(table);
  const int64_t at = work.place();
  const RunningTensor& tensor = work.tensor;
  if (at >= tensor.elements) return;
  float running[lanes], batch[lanes];
  load_lanes(running, tensor.running, at, tensor.elements);
  load_lanes(batch, tensor.batch, at, tensor.elements);
#pragma unroll
  for (int i = 0; i < lanes; ++i) running[i] = running[i] * tensor.momentum + batch[i] * tensor.share;
  store_lanes(tensor.result, running, at, tensor.elements);
}

template <typename P, typename G, typename M>
cudaError_t launch_adam(const AdamCall& call, const AdamTensor* tensors, int count, cudaStream_t stream) {
  const AdamFactors factors(call);
  return launch_in_tables(tensors, count, [&](const auto& table) {
    adam_kernel<P, G, M><<<table.blocks.blocks(), block_threads, 0, stream>>>(factors, call, table);
  });
}

template <typename P, typename G>
cudaError_t launch_sgd(const SgdCall& call, const SgdTensor* tensors, int count, cudaStream_t stream) {
  return launch_in_tables(tensors, count, [&](const auto& table) {
    sgd_kernel<P, G><<<table.blocks.blocks(), block_threads, 0, stream>>>(call, table);
  });
}

}  // namespace

cudaError_t adam(const AdamCall& call, const AdamTensor* tensors, int count, cudaStream_t stream) {
  if (call.param_type == Scalar::F32)
    return with_f32_math(call.grad_type, [&](auto* grad) {
      using G = std::remove_pointer_t<decltype(grad)>;
      if (call.moment_type == Scalar::F32) return launch_adam<float, G, float>(call, tensors, count, stream);
      return launch_adam<float, G, bf16>(call, tensors, count, stream);
    });
  return with_bf16_or_f32(call.grad_type, [&](auto* grad) {
    using G = std::remove_pointer_t<decltype(grad)>;
    if (call.moment_type == Scalar::F32) return launch_adam<bf16, G, float>(call, tensors, count, stream);
    return launch_adam<bf16, G, bf16>(call, tensors, count, stream);
  });
}

cudaError_t sgd(const SgdCall& call, const SgdTensor* tensors, int count, cudaStream_t stream) {
  if (call.param_type != Scalar::F32) return launch_sgd<bf16, bf16>(call, tensors, count, stream);
  return with_f32_math(call.grad_type, [&](auto* grad) {
    return launch_sgd<float, std::remove_pointer_t<decltype(grad)>>(call, tensors, count, stream);
  });
}

cudaError_t running_update(const RunningTensor* tensors, int count, cudaStream_t stream) {
  return launch_in_tables(tensors, count, [&](const auto& table) {
    running_update_kernel<<<table.blocks.blocks(), block_threads, 0, stream>>>(table);
  });
}

}  // namespace plimsoll::cuda
