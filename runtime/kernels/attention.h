#pragma once

#include "ir/ops/attention/attention_sizes.h"
#include "kernels/dropout.h"
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

// Dimensions of a mask before its rows and columns, 1 where it is the same for all of them.
struct MaskGradSizes {
  int64_t batch, heads;
  explicit MaskGradSizes(const Type& mask)
      : batch(mask.rank() > 3 ? mask.shape[mask.rank() - 4] : 1),
        heads(mask.rank() > 2 ? mask.shape[mask.rank() - 3] : 1) {}
};
int64_t mask_grad_partials_bytes(const OpCall& call);

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

// What attention's dropout keeps, and the block of Philox that its stream begins with.
Dropout attention_dropout(const Attrs& attrs);
int64_t first_dropout_block(const Attrs& attrs);

}  // namespace plimsoll
