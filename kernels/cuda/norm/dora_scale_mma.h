#pragma once

#include "kernels/cuda/norm/dora_scale.h"

namespace plimsoll::cuda {

// dora_scale on the matrix units, for rows of w that are multiples of 8 long and few ranks. y must not lie over an
// operand.
inline constexpr int dora_mma_max_rank = 64;
bool accepts_dora_mma(const DoraScale& call);
[[nodiscard]] cudaError_t dora_scale_mma(const DoraScale& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
