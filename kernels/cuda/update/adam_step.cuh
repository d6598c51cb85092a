#pragma once

// What adamw and adamw_8bit share: factors of the call and of the step, and the new parameter.

#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/update/update.h"

#include <cmath>

namespace plimsoll::cuda {

struct AdamFactors {
  double log_beta1, log_beta2;
  float one_minus_beta1, beta2, one_minus_beta2, eps, decay, l2;

  explicit AdamFactors(const AdamCall& call)
      : log_beta1(std::log(call.beta1)),
        log_beta2(std::log(call.beta2)),
        one_minus_beta1(static_cast<float>(1 - call.beta1)),
        beta2(static_cast<float>(call.beta2)),
        one_minus_beta2(static_cast<float>(1 - call.beta2)),
        eps(static_cast<float>(call.eps)),
        decay(call.decoupled ? static_cast<float>(call.weight_decay) : 0.0f),
        l2(call.decoupled ? 0.0f : static_cast<float>(call.weight_decay)) {}
};

// The square root of a number from 0 on; of what is no normal number 0.
__device__ inline float sqrt_approx(float x) {
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

// 1 / x, of numbers below 2^-126 infinity and of those above 2^126 0.
__device__ inline float reciprocal_approx(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}

// What depends on the step alone.
struct AdamStep {
  float step_size, inverse_root2, eps, keep, scale;
  int64_t number;

  __device__ AdamStep(const AdamFactors& f, const AdamCall& call)
      : eps(f.eps), scale(call.scale ? *call.scale : 1.0f), number(*call.step) {
    const auto step = static_cast<double>(number);
    const float lr = *call.lr;
    // 1 - beta^step without the cancellation
    const float correction1 = -expm1f(static_cast<float>(step * f.log_beta1)),
                correction2 = -expm1f(static_cast<float>(step * f.log_beta2));
    step_size = __fdividef(lr, correction1);
    inverse_root2 = rsqrtf(correction2);
    keep = 1.0f - lr * f.decay;
  }
  __device__ float updated(float param, float mean, float square) const {
    const float root = sqrt_approx(square) * inverse_root2 + eps;
    return __fmaf_rn(param, keep, -__fmul_rn(step_size * mean, reciprocal_approx(root)));
  }
};

}  // namespace plimsoll::cuda
