#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/few_rows.h"
#include "kernels/cuda/attention/mask_rows.h"
#include "kernels/cuda/attention/rotary.h"
#include "kernels/cuda/attention/whole_heads.h"
#include "kernels/cuda/common/card_attributes.h"
#include "runtime/cuda/backend/cudnn_attention.h"
#include "runtime/kernels/attention.h"

namespace plimsoll {
namespace {

static_assert(max_flash_depth == cuda::max_attention_depth);
static_assert(noted_columns == cuda::column_tile);

cuda::AttentionShape shape_of(const CudaCall& k, size_t mask) {
  const Attrs& attrs = k.attrs();
  const AttentionSizes n(k.call);
  const auto stream = static_cast<uint32_t>(attrs.get_int("id"));
  cuda::AttentionShape shape{.batch = n.batch,
                             .rows = n.rows,
                             .columns = n.columns,
                             .heads = n.heads,
                             .kv_heads = n.kv_heads,
                             .depth = n.depth,
                             .value_depth = n.value_depth,
                             .q_step = n.q_step,
                             .k_step = n.k_step,
                             .v_step = n.v_step,
                             .type = k.in_scalar(0),
                             .scale = static_cast<float>(attrs.get_float("scale")),
                             .causal = attrs.get_int("causal") != 0,
                             .window = attrs.get_int("window"),
                             .dropout = attention_dropout(attrs),
                             .random = {k.in<int64_t>(mask + 1), stream, first_dropout_block(attrs)},
                             .drawn_heads = n.drawn_heads,
                             .softcap = static_cast<float>(attrs.get_float("softcap"))};
  const size_t slopes = mask + attention_slopes, segments = mask + attention_segments;
  if (k.has(slopes)) shape.slopes = k.in<float>(slopes);
  if (k.has(segments)) {
    shape.segments = k.in<int64_t>(segments);
    shape.segments_step = segments_step(k.call.operand(segments));
  }
  if (!k.has(mask)) return shape;
  shape.mask = k.in(mask);
  shape.mask_type = k.in_scalar(mask);
  llvm::copy(mask_steps(k.call.operand(mask), n), shape.mask_strides);
  return shape;
}

const void* first_key(const CudaCall& k, const AttentionSizes& n) {
  return k.in<std::byte>(n.k_operand) + n.k_start * dtype_bytes(k.operands[0].type.dtype);
}
const void* first_value(const CudaCall& k, const AttentionSizes& n) {
  return k.in<std::byte>(n.v_operand) + n.v_start * dtype_bytes(k.operands[0].type.dtype);
}

// The segments' tiles lie in the workspace behind `before` bytes.
cuda::AttentionShape shape_with_segments(const CudaCall& k, size_t mask, int64_t before) {
  cuda::AttentionShape shape = shape_of(k, mask);
  if (shape.segments) shape.segment_tiles = reinterpret_cast<cuda::SegmentTile*>(k.scratch<std::byte>() + before);
  return shape;
}

// And those of the mask's columns behind them.
cuda::AttentionShape shape_for_mma(const CudaCall& k, size_t mask, int64_t before) {
  cuda::AttentionShape shape = shape_with_segments(k, mask, before);
  if (column_tiles_bytes(k.call, mask) > 0)
    shape.column_tiles =
        reinterpret_cast<cuda::ColumnTile*>(k.scratch<std::byte>() + before + segment_tiles_bytes(k.call, mask));
  return shape;
}

// Copies the mask of a shape to rows of whole words, with which the workspace begins.
Status copy_mask(const CudaCall& k, size_t mask, cuda::AttentionShape& shape) {
  void* const to = k.scratch<std::byte>();
  const Type& type = k.call.operand(mask);
  const int64_t columns = shape.columns, bytes = dtype_bytes(type.dtype), rows = type.elements() / columns;
  if (Status s = launched(k, cuda::copy_mask_rows(to, shape.mask, rows, columns, bytes, k.stream))) return s;
  shape.mask = to;
  for (int64_t& step : llvm::MutableArrayRef<int64_t>(shape.mask_strides).drop_back())
    step = step / columns * cuda::mask_pitch(columns, bytes);
  return Status::success();
}

cuda::AttentionCall call_of(const CudaCall& k) {
  const AttentionSizes n(k.call);
  cuda::AttentionCall call{
      .y = k.out(0), .lse = k.out<float>(1), .q = k.in(0), .k = first_key(k, n), .v = first_value(k, n)};
  if (k.has(attention_sinks)) call.sinks = {k.in(attention_sinks), k.in_scalar(attention_sinks)};
  return call;
}

Status launch_attention(const CudaCall& k) {
  return launched(k, cuda::attention(shape_of(k, attention_mask), call_of(k), k.stream));
}

Status launch_attention_mma(const CudaCall& k) {
  const int64_t next_rows = next_rows_bytes(k.call),
                copied = copies_mask(k.call, cuda::is_hopper()) ? mask_copy_bytes(k.call, attention_mask) : 0;
  cuda::AttentionCall call = call_of(k);
  cuda::AttentionShape shape = shape_for_mma(k, attention_mask, copied + next_rows);
  if (next_rows > 0) call.next_rows = reinterpret_cast<unsigned*>(k.scratch<std::byte>() + copied);
  if (copied > 0)
    if (Status s = copy_mask(k, attention_mask, shape)) return s;
  return launched(k, cuda::attention_mma(shape, call, k.stream));
}

Status launch_attention_few_rows(const CudaCall& k) {
  return launched(k, cuda::attention_few_rows(shape_of(k, attention_mask), call_of(k), k.stream));
}

// dq, dk and dv stand from result `first` on.
cuda::AttentionGradCall grad_call_of(const CudaCall& k, size_t first = 0) {
  const AttentionSizes n(k.call);
  const int64_t k_start = n.k_start * dtype_bytes(k.operands[0].type.dtype);
  const int64_t v_start = n.v_start * dtype_bytes(k.operands[0].type.dtype);
  return {.dq = k.out(first),
          .dk = k.out<std::byte>(first + n.k_operand) + k_start,
          .dv = k.out<std::byte>(first + n.v_operand) + v_start,
          .q = k.in(0),
          .k = first_key(k, n),
          .v = first_value(k, n),
          .y = k.in(3),
          .dy = k.in(5),
          .lse = k.in<float>(4),
          .delta = k.scratch<float>()};
}

Status launch_attention_grad(const CudaCall& k) {
  return launched(k, cuda::attention_grad(shape_of(k, attention_grad_mask), grad_call_of(k), k.stream));
}

Status launch_attention_grad_mma(const CudaCall& k) {
  return launched(k, cuda::attention_grad_mma(shape_for_mma(k, attention_grad_mask, row_products_bytes(k.call)),
                                              grad_call_of(k), k.stream));
}

Status launch_attention_grad_whole_heads(const CudaCall& k) {
  return launched(k, cuda::attention_grad_whole_heads(shape_of(k, attention_grad_mask), grad_call_of(k), k.stream));
}

Status launch_attention_grad_few_rows(const CudaCall& k) {
  return launched(k, cuda::attention_grad_few_rows(shape_of(k, attention_grad_mask), grad_call_of(k), k.stream));
}

// Lays out the workspace from `scratch` on.
void set_one_pass(cuda::AttentionGradCall& grads, const OnePassBytes& bytes, std::byte* scratch) {
  std::byte* const after_sums = scratch + bytes.sums + bytes.partials;
  grads.delta = reinterpret_cast<float*>(after_sums);
  grads.one_pass = {.sums = reinterpret_cast<float*>(scratch),
                    .log2_lse = reinterpret_cast<float*>(after_sums + bytes.rows),
                    .turns = reinterpret_cast<int*>(after_sums + 2 * bytes.rows),
                    .parts = static_cast<int>(bytes.parts),
                    .partials = reinterpret_cast<float*>(scratch + bytes.sums)};
}

Status launch_attention_grad_one_pass(const CudaCall& k) {
  const OnePassBytes bytes(k.call);
  const int64_t copied = mask_copy_bytes(k.call, attention_grad_mask);
  cuda::AttentionShape shape = shape_for_mma(k, attention_grad_mask, copied + bytes.all);
  cuda::AttentionGradCall grads = grad_call_of(k);
  set_one_pass(grads, bytes, k.scratch<std::byte>() + copied);
  if (copied > 0)
    if (Status s = copy_mask(k, attention_grad_mask, shape)) return s;
  return launched(k, cuda::attention_grad_mma(shape, grads, k.stream));
}

// The gradient of the mask reads what attention_grad reads, and writes no other.
cuda::AttentionGradCall mask_grad_operands(const CudaCall& k) {
  const AttentionSizes n(k.call);
  return {.q = k.in(0),
          .k = first_key(k, n),
          .v = first_value(k, n),
          .y = k.in(3),
          .dy = k.in(5),
          .lse = k.in<float>(4),
          .delta = k.scratch<float>()};
}

cuda::MaskGradCall mask_grad_of(const CudaCall& k, float* partials) {
  const MaskGradSizes sizes(k.call.operand(attention_grad_mask));
  return {.dmask = k.out(0),
          .dmask_type = k.in_scalar(attention_grad_mask),
          .mask_batch = sizes.batch,
          .mask_heads = sizes.heads,
          .partials = partials};
}

Status launch_mask_grad(const CudaCall& k) {
  return launched(k, cuda::attention_mask_grad(shape_of(k, attention_grad_mask), mask_grad_operands(k),
                                               mask_grad_of(k, nullptr), k.stream));
}

Status launch_mask_grad_mma(const CudaCall& k) {
  const int64_t row_products = row_products_bytes(k.call);
  std::byte* const partials = k.scratch<std::byte>() + row_products;
  const cuda::AttentionShape shape =
      shape_with_segments(k, attention_grad_mask, row_products + mask_grad_partials_bytes(k.call));
  return launched(k, cuda::attention_mask_grad_mma(shape, mask_grad_operands(k),
                                                   mask_grad_of(k, reinterpret_cast<float*>(partials)), k.stream));
}

Status launch_grad_with_mask(const CudaCall& k) {
  const cuda::AttentionShape shape = shape_of(k, attention_grad_mask);
  const cuda::AttentionGradCall grads = grad_call_of(k, 1);
  if (Status s = launched(k, cuda::attention_grad(shape, grads, k.stream))) return s;
  return launched(k, cuda::attention_mask_grad(shape, grads, mask_grad_of(k, nullptr), k.stream));
}

Status launch_grad_with_mask_mma(const CudaCall& k) {
  const int64_t row_products = row_products_bytes(k.call);
  std::byte* const partials = k.scratch<std::byte>() + row_products;
  const cuda::AttentionShape shape =
      shape_with_segments(k, attention_grad_mask, row_products + mask_grad_partials_bytes(k.call));
  return launched(k, cuda::attention_grad_with_mask_mma(shape, grad_call_of(k, 1),
                                                        mask_grad_of(k, reinterpret_cast<float*>(partials)), k.stream));
}

Status launch_grad_with_mask_stored(const CudaCall& k) {
  const int64_t row_products = row_products_bytes(k.call);
  const ScoreGradSizes scores(k.call);
  const cuda::AttentionShape shape =
      shape_with_segments(k, attention_grad_mask, row_products + scores.workspace_bytes());
  cuda::AttentionGradCall grads = grad_call_of(k, 1);
  grads.scores = {.at = scores.is_result ? k.out(0) : k.scratch<std::byte>() + row_products,
                  .pitch = scores.pitch,
                  .is_wide = scores.is_wide};
  return launched(k, cuda::attention_grad_with_mask_mma(shape, grads, mask_grad_of(k, nullptr), k.stream));
}

// A copy of the mask and dS come before the rest of the workspace.
Status launch_grad_with_mask_one_pass(const CudaCall& k) {
  const ScoreGradSizes scores(k.call);
  const int64_t copied = mask_copy_bytes(k.call, attention_grad_mask);
  cuda::AttentionShape shape = shape_of(k, attention_grad_mask);
  cuda::AttentionGradCall grads = grad_call_of(k, 1);
  set_one_pass(grads, OnePassBytes(k.call), k.scratch<std::byte>() + copied + scores.workspace_bytes());
  grads.scores = {.at = scores.is_result ? k.out(0) : k.scratch<std::byte>() + copied,
                  .pitch = scores.pitch,
                  .skips_tiles = !scores.is_result};
  if (copied > 0)
    if (Status s = copy_mask(k, attention_grad_mask, shape)) return s;
  return launched(k, cuda::attention_grad_with_mask_mma(shape, grads, mask_grad_of(k, nullptr), k.stream));
}

Status launch_sinks_grad(const CudaCall& k) {
  const SinksSizes n(k.call);
  return launched(k, cuda::attention_sinks_grad({.dsinks = k.out(0),
                                                 .y = k.in(0),
                                                 .dy = k.in(2),
                                                 .sinks = k.in(3),
                                                 .lse = k.in<float>(1),
                                                 .partials = k.scratch<float>(),
                                                 .type = k.in_scalar(0),
                                                 .sinks_type = k.in_scalar(3),
                                                 .batch = n.batch,
                                                 .rows = n.rows,
                                                 .heads = n.heads,
                                                 .depth = n.depth},
                                                k.stream));
}

Status launch_rotary(const CudaCall& k) {
  const RotarySizes n(k.call);
  const cuda::RotaryCall call{.y = k.out(0),
                              .x = k.in(0),
                              .cos = k.in(1),
                              .sin = k.in(2),
                              .type = k.in_scalar(0),
                              .table_type = k.in_scalar(1),
                              .rows = n.batch * n.rows,
                              .heads = n.heads,
                              .turned = n.turned,
                              .depth = n.depth,
                              .pairs = n.pairs,
                              .table_rows = n.table_batch * n.rows,
                              .interleaved = n.interleaved,
                              .inverse = n.inverse};
  return launched(k, cuda::rotary(call, k.stream));
}

constexpr CudaLauncher attention_table[] = {
    {op_attention, "cudnn", launch_cudnn_attention, prepare_cudnn_attention},
    {op_attention_grad, "cudnn", launch_cudnn_attention_grad, prepare_cudnn_attention_grad},
    {op_attention_grad, "cudnn_ordered", launch_cudnn_attention_grad, prepare_cudnn_attention_grad_ordered},
    {op_attention, "few_rows", launch_attention_few_rows},
    {op_attention_grad, "few_rows", launch_attention_grad_few_rows},
    {op_attention, "mma", launch_attention_mma},
    {op_attention_grad, "whole_heads", launch_attention_grad_whole_heads},
    {op_attention_grad, "one_pass", launch_attention_grad_one_pass},
    {op_attention_grad, "mma", launch_attention_grad_mma},
    {op_attention, "flash", launch_attention},
    {op_attention_grad, "flash", launch_attention_grad},
    {op_attention_mask_grad, "mma", launch_mask_grad_mma},
    {op_attention_mask_grad, "flash", launch_mask_grad},
    {op_attention_grad_with_mask, "one_pass", launch_grad_with_mask_one_pass},
    {op_attention_grad_with_mask, "stored_scores", launch_grad_with_mask_stored},
    {op_attention_grad_with_mask, "mma", launch_grad_with_mask_mma},
    {op_attention_grad_with_mask, "flash", launch_grad_with_mask},
    {op_attention_grad_with_mask, "stored_scores_lean", launch_grad_with_mask_mma},
    {op_attention_sinks_grad, "dots", launch_sinks_grad},
    {op_rotary, "pairs", launch_rotary},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> attention_launchers() { return attention_table; }

}  // namespace plimsoll
