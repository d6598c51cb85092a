#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/update/adam_step.cuh"
#include "kernels/cuda/update/block_table.cuh"
#include "kernels/cuda/update/rounding.cuh"
#include "kernels/cuda/update/update.h"

#include <algorithm>

// Serves adamw, sgd and running_update. PyTorch's update rules. A thread updates four consecutive elements: 28 bytes
// per f32 parameter with its moments, each read and written once. What depends on the step alone every thread computes
// for itself while its elements arrive. A launch takes as many tensors as its parameters hold: biases and the like are
// too small to fill a launch of their own. One of AdamW begins while the launch before it ends.

namespace plimsoll::cuda {
namespace {

constexpr int lanes = 4;
static_assert(lanes * block_threads == norm_block);
// Tensors of a launch, by what its parameters hold: 4 KB are quicker to pass than 32, which are all that there may be.
constexpr int few_tensors = 36, many_tensors = 280;

template <typename Tensor, int capacity_>
struct UpdateTable {
  static constexpr int capacity = capacity_;
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

// Calls launch(table) for one tensor, or for as many at a time as a table holds, until one fails.
template <typename Tensor, typename Launch>
cudaError_t launch_in_tables(const Tensor* tensors, int count, Launch launch) {
  auto launch_some = [&](auto table, int some) {
    for (int i = 0; i < some; ++i) {
      table.tensors[i] = tensors[i];
      table.blocks.add(divide_up(tensors[i].elements, int64_t{lanes} * block_threads));
    }
    return table.blocks.blocks() > 0 ? launch(table) : cudaSuccess;
  };
  for (int some = 0; count > 0; tensors += some, count -= some) {
    some = std::min(count, many_tensors);
    const cudaError_t error = some == 1             ? launch_some(UpdateTable<Tensor, 1>{}, some)
                              : some <= few_tensors ? launch_some(UpdateTable<Tensor, few_tensors>{}, some)
                                                    : launch_some(UpdateTable<Tensor, many_tensors>{}, some);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
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

// The 16-bit copy of an f32 parameter; other parameters have none.
template <typename P, typename Tensor>
__device__ void store_copy(const Tensor& tensor, const float (&param)[lanes], int64_t at) {
  if (!std::is_same_v<P, float> || !tensor.copy) return;
  if (tensor.copy_type == Scalar::F16)
    store_lanes(static_cast<f16*>(tensor.copy), param, at, tensor.elements);
  else
    store_lanes(static_cast<bf16*>(tensor.copy), param, at, tensor.elements);
}

// The norm of a block's part of the gradient, of which every thread has its lanes.
__device__ void store_norm(float* norm, const float (&gradient)[lanes]) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < lanes; ++i) squares += gradient[i] * gradient[i];
  squares = block_reduce(squares, Add(), 0.0f);
  if (threadIdx.x == 0) *norm = sqrtf(squares);
}

// What a thread has of a parameter and its moments.
struct AdamLanes {
  float param[lanes], mean[lanes], square[lanes];
};

template <typename P, typename M>
__device__ void load_adam(AdamLanes& to, const AdamTensor& tensor, int64_t at) {
  load_lanes(to.param, static_cast<const P*>(tensor.param), at, tensor.elements);
  load_lanes(to.mean, static_cast<const M*>(tensor.m), at, tensor.elements);
  load_lanes(to.square, static_cast<const M*>(tensor.v), at, tensor.elements);
}

// of.param becomes the new parameter.
template <typename P, typename M>
__device__ void adam_lanes(const AdamFactors& f, const AdamStep& step, bool skip, const AdamTensor& tensor,
                           AdamLanes& of, const float (&g)[lanes], int64_t at) {
  P* new_param = static_cast<P*>(tensor.new_param);
  M *new_m = static_cast<M*>(tensor.new_m), *new_v = static_cast<M*>(tensor.new_v);
  if (skip) {
    keep_lanes(new_param, static_cast<const P*>(tensor.param), at, tensor.elements);
    keep_lanes(new_m, static_cast<const M*>(tensor.m), at, tensor.elements);
    keep_lanes(new_v, static_cast<const M*>(tensor.v), at, tensor.elements);
    return;
  }
#pragma unroll
  for (int i = 0; i < lanes; ++i) {
    const float gradient = g[i] * step.scale + f.l2 * of.param[i];
    of.mean[i] += (gradient - of.mean[i]) * f.one_minus_beta1;
    of.square[i] = of.square[i] * f.beta2 + gradient * gradient * f.one_minus_beta2;
    of.param[i] = step.updated(of.param[i], of.mean[i], of.square[i]);
  }
  round_parameters<P>(tensor.rounding, step.number, of.param, at);
  store_lanes(new_param, of.param, at, tensor.elements);
  store_lanes(new_m, of.mean, at, tensor.elements);
  store_lanes(new_v, of.square, at, tensor.elements);
}

template <typename P, typename G, typename M, int capacity>
__global__ void __launch_bounds__(block_threads)
    adam_kernel(AdamFactors f, AdamCall call, const __grid_constant__ UpdateTable<AdamTensor, capacity> table) {
  const Work work = find_work(table);
  const int64_t at = work.place();
  const auto& tensor = work.tensor;
  float g[lanes] = {};
  AdamLanes of{};
  wait_for_launch_before();
  let_next_launch_begin();
  const bool is_inside = at < tensor.elements, skip = call.skip && *call.skip;
  if (is_inside) {
    load_adam<P, M>(of, tensor, at);
    load_lanes(g, static_cast<const G*>(tensor.grad), at, tensor.elements);
  }
  const AdamStep step(f, call);
  if (is_inside) {
    adam_lanes<P, M>(f, step, skip, tensor, of, g, at);
    store_copy<P>(tensor, of.param, at);
  }
  if (tensor.norms) store_norm(tensor.norms + work.block, g);
}

// `p` becomes the new parameter.
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
  const Work work = find_work(table);
  const int64_t at = work.place();
  const auto& tensor = work.tensor;
  float g[lanes] = {}, p[lanes] = {};
  if (at < tensor.elements) {
    load_lanes(g, static_cast<const G*>(tensor.grad), at, tensor.elements);
    sgd_lanes<P>(call, tensor, p, g, at);
    store_copy<P>(tensor, p, at);
  }
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
    constexpr int capacity = std::remove_cvref_t<decltype(table)>::capacity;
    return launch_early(adam_kernel<P, G, M, capacity>, table.blocks.blocks(), block_threads, stream, factors, call,
                        table);
  });
}

template <typename P, typename G>
cudaError_t launch_sgd(const SgdCall& call, const SgdTensor* tensors, int count, cudaStream_t stream) {
  return launch_in_tables(tensors, count, [&](const auto& table) {
    sgd_kernel<P, G><<<table.blocks.blocks(), block_threads, 0, stream>>>(call, table);
    return cudaGetLastError();
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
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
