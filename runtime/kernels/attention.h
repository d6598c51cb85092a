#pragma once

#include "ir/ops/attention/attention_sizes.h"
#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/elementwise.h"

namespace plimsoll {

// Where attention and its gradient have the mask; the random numbers' seed stands behind it.
inline constexpr size_t attention_mask = 3, attention_grad_mask = 6;

// Strides with which a mask is read over the scores [batch, heads, rows, columns].
inline Shape mask_steps(const Type& mask, const AttentionSizes& n) {
  return broadcast_steps(mask.shape, {n.batch, n.heads, n.rows, n.columns});
}

// One float for each row of scores, in the gradient's workspace.
inline int64_t row_products_bytes(const OpCall& grad) {
  return grad.operand(4).elements() * static_cast<int64_t>(sizeof(float));
}

struct RotarySizes {
  int64_t batch, rows, heads, depth, pairs, table_batch;
  bool interleaved, inverse;
  explicit RotarySizes(const OpCall& call)
      : batch(call.operand(0).shape[0]),
        rows(call.operand(0).shape[1]),
        heads(call.attrs.get_int("heads")),
        depth(call.operand(0).shape[2] / heads),
        pairs(call.operand(1).shape[2]),
        table_batch(call.operand(1).shape[0]),
        interleaved(call.attrs.get_int("interleaved") != 0),
        inverse(call.attrs.get_int("inverse") != 0) {}
};

inline constexpr int64_t max_flash_depth = 256;  // of a head

namespace kernel {
extern const CudaCandidate attention_cudnn, attention_grad_cudnn, attention_grad_cudnn_ordered, attention_flash,
    attention_grad_flash, rotary_pairs;
}

// cuDNN's first: where it accepts a call it is the faster one.
inline constexpr const CudaCandidate* attention_candidates[] = {
    &kernel::attention_cudnn, &kernel::attention_grad_cudnn, &kernel::attention_grad_cudnn_ordered,
    &kernel::attention_flash, &kernel::attention_grad_flash, &kernel::rotary_pairs};

}  // namespace plimsoll
