#pragma once

// Stochastic rounding of new parameters.

#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/philox.cuh"
#include "kernels/cuda/update/update.h"
#include "kernels/stochastic_rounding.h"

namespace plimsoll::cuda {

// Makes consecutive elements from `at` on, a multiple of 4, numbers that P holds exactly, where they are rounded so.
template <typename P, int lanes>
__device__ void round_parameters(const Rounding& rounding, int64_t step, float (&params)[lanes], int64_t at) {
  static_assert(lanes % 4 == 0);
  if constexpr (std::is_same_v<P, bf16>) {
    if (rounding.id == 0) return;
    Philox random;
    random.step = static_cast<uint32_t>(step);
    random.id = rounding.id;
    PhiloxBlock words[lanes / 4];
    random.blocks<10>(words, static_cast<uint64_t>(rounding.first_block + at / 4));
#pragma unroll
    for (int i = 0; i < lanes; ++i)
      params[i] = __uint_as_float(stochastically_rounded(__float_as_uint(params[i]), words[i / 4].lanes[i % 4]));
  }
}

// Calls visit with a null pointer of the type that a gradient of a parameter in bf16 has.
template <typename Visit>
cudaError_t with_bf16_or_f32(Scalar type, Visit visit) {
  return type == Scalar::F32 ? visit(static_cast<float*>(nullptr)) : visit(static_cast<bf16*>(nullptr));
}

}  // namespace plimsoll::cuda
