#pragma once

// Attention and its gradient where heads are long or end within a 16-byte word, and have so few rows and columns that a
// block has all of a head's scores: one launch, no workspace.

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/few_rows_sizes.h"

namespace plimsoll::cuda {

// On Hopper, heads that are_few_rows takes, of 16-bit floats, with any masks.
[[nodiscard]] cudaError_t attention_few_rows(const AttentionShape& shape, const AttentionCall& call,
                                             cudaStream_t stream);
// The same where each head has its own key head. Reads neither y nor delta.
[[nodiscard]] cudaError_t attention_grad_few_rows(const AttentionShape& shape, const AttentionGradCall& grads,
                                                  cudaStream_t stream);

}  // namespace plimsoll::cuda
