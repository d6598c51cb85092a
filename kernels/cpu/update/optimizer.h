#pragma once

// Parameter updates, each in one pass over its operands. Outputs may lie over the operands they replace.
// `scale` multiplies the gradient first. `norms`, which may be null, takes the 2-norm of every norm_block elements of
// the gradient.

#include "kernels/cpu/common/philox.h"

#include <cstdint>

namespace plimsoll::cpu {

inline constexpr int64_t norm_block = 1024;

// norms [n / norm_block, rounded up]
void gradient_norms(float* norms, const float* grad, int64_t n);

struct AdamOptions {
  double beta1, beta2, eps, weight_decay;
  bool decoupled;  // AdamW; otherwise the decay is part of the gradient
  // Parameters become numbers of bf16, each by its word of the stream (kernels/stochastic_rounding.h).
  bool rounds = false;
  RandomStream stream = {};
};

void adam(const AdamOptions& options, float* new_param, float* new_m, float* new_v, const float* param,
          const float* grad, const float* m, const float* v, int64_t step, float lr, float scale, int64_t n,
          float* norms);

// Moments as 8-bit codes, in memory order, each adam_block of them with a scale of at least min_scale. `map` and
// `thresholds` have 256 entries: kernels/dynamic_map.h.
inline constexpr int64_t adam_block = 256;
struct EightBitMoment {
  uint8_t* new_codes;
  const uint8_t* codes;
  const float *map, *thresholds;
};
struct EightBitMoments {
  EightBitMoment m, v;  // m has the signed map
  float* new_scales;    // [blocks, 2]: of m and of v
  const float* scales;
  float min_scale;
};
void adam_8bit(const AdamOptions& options, float* new_param, const float* param, const float* grad,
               const EightBitMoments& moments, int64_t step, float lr, float scale, int64_t n, float* norms);

struct SgdOptions {
  float momentum, dampening, weight_decay;
  bool nesterov;
};

// momentum buffers are null without momentum.
void sgd(const SgdOptions& options, float* new_param, float* new_momentum, const float* param, const float* grad,
         const float* momentum, float lr, float scale, int64_t n, float* norms);

}  // namespace plimsoll::cpu
