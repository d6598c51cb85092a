#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/update.h"

#include <cmath>

// PyTorch's update rules. A thread updates four consecutive elements: 28 bytes an f32 parameter with its moments, each
// read and written once. What depends on the step alone every thread computes for itself while its elements arrive.

namespace plimsoll::cuda {
namespace {

constexpr int lanes = 4, block_threads = 256;

unsigned blocks_for(int64_t elements) {
  return static_cast<unsigned>(divide_up(elements, int64_t{lanes} * block_threads));
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

struct AdamFactors {
  double log_beta1, log_beta2;
  float one_minus_beta1, beta2, one_minus_beta2, eps, decay, l2;
};

template <typename P, typename G, typename M>
__global__ void __launch_bounds__(block_threads) adam_kernel(AdamFactors f, AdamCall call) {
  const int64_t at = (int64_t{blockIdx.x} * block_threads + threadIdx.x) * lanes;
  if (at >= call.elements) return;
  const P* param = static_cast<const P*>(call.param);
  const M *m = static_cast<const M*>(call.m), *v = static_cast<const M*>(call.v);
  P* new_param = static_cast<P*>(call.new_param);
  M *new_m = static_cast<M*>(call.new_m), *new_v = static_cast<M*>(call.new_v);
  if (call.skip && *call.skip) {
    keep_lanes(new_param, param, at, call.elements);
    keep_lanes(new_m, m, at, call.elements);
    keep_lanes(new_v, v, at, call.elements);
    return;
  }
  float p[lanes], g[lanes], mean[lanes], square[lanes];
  load_lanes(p, param, at, call.elements);
  load_lanes(g, static_cast<const G*>(call.grad), at, call.elements);
  load_lanes(mean, m, at, call.elements);
  load_lanes(square, v, at, call.elements);
  const double step = static_cast<double>(*call.step);
  const float lr = *call.lr, scale = call.scale ? *call.scale : 1.0f;
  // 1 - beta^step without the cancellation
  const float correction1 = -expm1f(static_cast<float>(step * f.log_beta1));
  const float correction2 = -expm1f(static_cast<float>(step * f.log_beta2));
  const float step_size = lr / correction1, inverse_root2 = 1.0f / sqrtf(correction2);
  const float keep = 1.0f - lr * f.decay;
#pragma unroll
  for (int i = 0; i < lanes; ++i) {
    const float gradient = g[i] * scale + f.l2 * p[i];
    mean[i] += (gradient - mean[i]) * f.one_minus_beta1;
    square[i] = square[i] * f.beta2 + gradient * gradient * f.one_minus_beta2;
    p[i] = p[i] * keep - step_size * mean[i] / (sqrtf(square[i]) * inverse_root2 + f.eps);
  }
  store_lanes(new_param, p, at, call.elements);
  store_lanes(new_m, mean, at, call.elements);
  store_lanes(new_v, square, at, call.elements);
}

template <typename P, typename G>
__global__ void __launch_bounds__(block_threads) sgd_kernel(SgdCall call) {
  const int64_t at = (int64_t{blockIdx.x} * block_threads + threadIdx.x) * lanes;
  if (at >= call.elements) return;
  const P *param = static_cast<const P*>(call.param), *momentum = static_cast<const P*>(call.momentum);
  P *new_param = static_cast<P*>(call.new_param), *new_momentum = static_cast<P*>(call.new_momentum);
  if (call.skip && *call.skip) {
    keep_lanes(new_param, param, at, call.elements);
    if (momentum) keep_lanes(new_momentum, momentum, at, call.elements);
    return;
  }
  float p[lanes], g[lanes], buffer[lanes] = {};
  load_lanes(p, param, at, call.elements);
  load_lanes(g, static_cast<const G*>(call.grad), at, call.elements);
  if (momentum) load_lanes(buffer, momentum, at, call.elements);
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
  store_lanes(new_param, p, at, call.elements);
  if (momentum) store_lanes(new_momentum, buffer, at, call.elements);
}

__global__ void running_update_kernel(float* result, const float* running, const float* batch, float momentum,
                                      float share, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i < elements) result[i] = running[i] * momentum + batch[i] * share;
}

template <typename P, typename G, typename M>
cudaError_t launch_adam(const AdamCall& call, cudaStream_t stream) {
  const AdamFactors factors{std::log(call.beta1),
                            std::log(call.beta2),
                            static_cast<float>(1 - call.beta1),
                            static_cast<float>(call.beta2),
                            static_cast<float>(1 - call.beta2),
                            static_cast<float>(call.eps),
                            call.decoupled ? static_cast<float>(call.weight_decay) : 0.0f,
                            call.decoupled ? 0.0f : static_cast<float>(call.weight_decay)};
  adam_kernel<P, G, M><<<blocks_for(call.elements), block_threads, 0, stream>>>(factors, call);
  return cudaGetLastError();
}

}  // namespace

cudaError_t adam(const AdamCall& call, cudaStream_t stream) {
  if (call.elements == 0) return cudaSuccess;
  if (call.param_type == Scalar::F32)
    return with_f32_math(call.grad_type, [&](auto* grad) {
      return launch_adam<float, std::remove_pointer_t<decltype(grad)>, float>(call, stream);
    });
  if (call.moment_type == Scalar::F32) return launch_adam<bf16, bf16, float>(call, stream);
  return launch_adam<bf16, bf16, bf16>(call, stream);
}

cudaError_t sgd(const SgdCall& call, cudaStream_t stream) {
  if (call.elements == 0) return cudaSuccess;
  if (call.param_type != Scalar::F32) {
    sgd_kernel<bf16, bf16><<<blocks_for(call.elements), block_threads, 0, stream>>>(call);
    return cudaGetLastError();
  }
  return with_f32_math(call.grad_type, [&](auto* grad) {
    using G = std::remove_pointer_t<decltype(grad)>;
    sgd_kernel<float, G><<<blocks_for(call.elements), block_threads, 0, stream>>>(call);
    return cudaGetLastError();
  });
}

cudaError_t running_update(float* result, const float* running, const float* batch, float momentum, float share,
                           int64_t elements, cudaStream_t stream) {
  if (elements == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(divide_up(elements, block_threads));
  running_update_kernel<<<blocks, block_threads, 0, stream>>>(result, running, batch, momentum, share, elements);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
