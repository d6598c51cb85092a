#pragma once

// The gradient of attention of heads so short that a block has a whole one: one launch, no workspace.

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/whole_heads_sizes.h"

namespace plimsoll::cuda {

// On Hopper, heads that fits_whole_heads takes, each with its own key head, of 16-bit floats in rows of whole 16-byte
// words: without dropout, caps, slopes, segments and masks with rows.
[[nodiscard]] cudaError_t attention_grad_whole_heads(const AttentionShape& shape, const AttentionGradCall& grads,
                                                     cudaStream_t stream);

}  // namespace plimsoll::cuda
