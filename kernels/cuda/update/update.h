#pragma once

// Parameter updates, each in one pass over its operands. Results may lie over the operands they replace. Learning
// rate, step, scale and skip are read on the device; a null scale is 1, a null skip is false. `norms`, which may be
// null, takes the 2-norm of every norm_block elements of the gradient.

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace plimsoll::cuda {

inline constexpr int norm_block = 1024;

// The stream of random numbers by which a parameter in bf16 is rounded (kernels/stochastic_rounding.h), of seed 0 and
// of the update's number. Id 0: it is rounded to the nearest number.
struct Rounding {
  uint32_t id = 0;
  int64_t first_block = 0;
};

// A parameter with what its update reads and writes.
struct AdamTensor {
  void *new_param, *new_m, *new_v;
  const void *param, *grad, *m, *v;
  float* norms;
  void* copy;  // takes the new parameter rounded to copy_type; may be null
  Scalar copy_type;
  int64_t elements;
  Rounding rounding;
};

// param f32 and grad f32, bf16 or f16; or param bf16 and grad bf16 or f32. The moments are f32 or bf16. Copies, bf16 or
// f16, are of f32 parameters.
struct AdamCall {
  Scalar param_type, grad_type, moment_type;
  const int64_t* step;
  const float *lr, *scale;
  const bool* skip;  // keeps everything as it was
  double beta1, beta2, eps, weight_decay;
  bool decoupled;  // AdamW; otherwise the decay is part of the gradient
};
// Updates `count` tensors at once: none may write what another reads or writes.
[[nodiscard]] cudaError_t adam(const AdamCall& call, const AdamTensor* tensors, int count, cudaStream_t stream);

// The same with moments of 8-bit codes, in memory order, each eight_bit_block of them with a scale: scales are
// [blocks, 2], of m and of v. `maps` are those of kernels/dynamic_map.h.
inline constexpr int eight_bit_block = 256;
struct Adam8Tensor {
  void* new_param;
  uint8_t *new_m, *new_v;
  float* new_scales;
  const void *param, *grad;
  const uint8_t *m, *v;
  const float* scales;
  float* norms;
  int64_t elements;
  Rounding rounding;
};
struct DynamicMaps {
  float of_signed[256], of_unsigned[256];
};
// moment_type is not read. Scales are at least min_scale.
[[nodiscard]] cudaError_t adam_8bit(const AdamCall& call, const DynamicMaps& maps, float min_scale,
                                    const Adam8Tensor* tensors, int count, cudaStream_t stream);

struct SgdTensor {
  void *new_param, *new_momentum;
  const void *param, *grad, *momentum;  // no momentum: null
  float* norms;
  void* copy;  // as AdamTensor's, like all below
  Scalar copy_type;
  int64_t elements;
};

// param and momentum f32 and grad f32, bf16 or f16; or all bf16.
struct SgdCall {
  Scalar param_type, grad_type;
  const float *lr, *scale;
  const bool* skip;
  float momentum_factor, dampening, weight_decay;
  bool nesterov;
};
[[nodiscard]] cudaError_t sgd(const SgdCall& call, const SgdTensor* tensors, int count, cudaStream_t stream);

// result = running * momentum + batch * share, all f32.
struct RunningTensor {
  float* result;
  const float *running, *batch;
  float momentum, share;
  int64_t elements;
};
[[nodiscard]] cudaError_t running_update(const RunningTensor* tensors, int count, cudaStream_t stream);

}  // namespace plimsoll::cuda
