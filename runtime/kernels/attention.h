#pragma once

#include "ir/ops/attention/attention_sizes.h"
#include "kernels/cuda/attention/one_pass_sizes.h"
#include "kernels/dropout.h"
#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/elementwise.h"

namespace plimsoll {

// Where attention and its gradient have the mask, how far behind it other operands stand, and where the sinks are.
inline constexpr size_t attention_mask = 3, attention_grad_mask = 6;
inline constexpr size_t attention_slopes = 2, attention_segments = 3, attention_sinks = 7;

// Elements from one sample's segments to the next one's; 0 where all have the same.
inline int64_t segments_step(const Type& segments) { return segments.shape[0] > 1 ? segments.shape[1] : 0; }

// Strides with which a mask is read over the scores [batch, heads, rows, columns].
inline Shape mask_steps(const Type& mask, const AttentionSizes& n) {
  return broadcast_steps(mask.shape, {n.batch, n.heads, n.rows, n.columns});
}

// As the kernels decide (attention_windows.cuh): windows whose mask is the same for all samples. The mask's place says
// whether this is attention or its gradient.
bool are_small_windows(const OpCall& call, size_t mask);
// Masks with rows that the copy engine brings as tiles.
bool has_mask_tiles(const OpCall& call, size_t mask);
// Of a copy of the mask in the workspace, whose rows are whole 16-byte words as the copy engine takes them; 0 where
// those of the mask are.
int64_t mask_copy_bytes(const OpCall& call, size_t mask);
// Does attention_short_forward.cu take the call on Hopper, and does it need a copy of the mask there?
bool is_short_forward(const OpCall& call);
bool copies_mask(const OpCall& attention, bool is_hopper);

// One float for each row of scores, in the gradient's workspace.
inline int64_t row_products_bytes(const OpCall& grad) {
  return grad.operand(4).elements() * static_cast<int64_t>(sizeof(float));
}

// The workspace of a gradient in one pass: sums of dq, those of dk and dv by part of a key head's heads, where there is
// more than one, a float for each row of scores twice, and turns.
struct OnePassBytes {
  int64_t parts, sums, partials, rows, all;
  explicit OnePassBytes(const OpCall& grad);
};

cuda::OnePassSteps one_pass_steps(const OpCall& grad);
// Elements of a head in its tiles.
int64_t one_pass_tile_depth(const OpCall& grad);

// Dimensions of a mask before its rows and columns, 1 where it is the same for all of them.
struct MaskGradSizes {
  int64_t batch, heads;
  explicit MaskGradSizes(const Type& mask)
      : batch(mask.rank() > 3 ? mask.shape[mask.rank() - 4] : 1),
        heads(mask.rank() > 2 ? mask.shape[mask.rank() - 3] : 1) {}
};
int64_t mask_grad_partials_bytes(const OpCall& call);

// dS [batch, heads, rows, pitch] in 16 bits, from which a mask's gradient is summed, or which is that gradient.
struct ScoreGradSizes {
  int64_t pitch, bytes;
  bool is_result, is_wide;  // the latter: in f32
  explicit ScoreGradSizes(const OpCall& grad);
  int64_t workspace_bytes() const { return is_result ? 0 : bytes; }
};

// Of the number of the next rows, before the rest of the workspace of attention on the matrix units: where heads are of
// a size whose blocks take rows after rows.
int64_t next_rows_bytes(const OpCall& call);
// The least and largest segment of each tile of rows, in the workspace of attention on the matrix units; 0 without.
int64_t segment_tiles_bytes(const OpCall& call, size_t mask);
// What a mask does to each tile of noted_columns, a byte each behind the segments' tiles; 0 where it is not the same
// for all rows and heads.
inline constexpr int64_t noted_columns = 64;
int64_t column_tiles_bytes(const OpCall& call, size_t mask);

struct SinksSizes {
  int64_t batch, rows, heads, depth;
  explicit SinksSizes(const OpCall& call)
      : batch(call.operand(0).shape[0]),
        rows(call.operand(0).shape[1]),
        heads(call.operand(3).elements()),
        depth(call.operand(0).shape[2] / heads) {}
};

struct RotarySizes {
  int64_t batch, rows, heads, turned, depth, pairs, table_batch;
  bool interleaved, inverse;
  explicit RotarySizes(const OpCall& call)
      : batch(call.operand(0).shape[0]),
        rows(call.operand(0).shape[1]),
        heads(call.attrs.get_int("heads")),
        turned(call.attrs.get_int("turned") > 0 ? call.attrs.get_int("turned") : heads),
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
