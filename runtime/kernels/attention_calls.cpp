#include "ir/support/philox.h"
#include "kernels/cuda/attention/mask_grad_sizes.h"
#include "kernels/cuda/attention/mask_rows.h"
#include "kernels/cuda/attention/one_pass_sizes.h"
#include "kernels/division.h"
#include "runtime/kernels/attention.h"

// What calls of attention ask of memory, and the questions that choices, prices and launches share.

namespace plimsoll {

// As the kernels decide (attention_windows.cuh): windows whose mask is the same for all samples.
bool are_small_windows(const OpCall& call, size_t mask) {
  constexpr int64_t max_rows = 64, max_depth = 32;
  const AttentionSizes n(call);
  const bool has_own_mask = call.has(mask) && call.operand(mask).rank() == 4 && call.operand(mask).shape[0] > 1;
  return n.depth <= max_depth && n.depth % 8 == 0 && n.value_depth == n.depth && n.rows <= max_rows &&
         n.columns <= max_rows && n.heads == n.kv_heads && call.attrs.get_float("dropout") == 0 && !has_own_mask &&
         call.attrs.get_float("softcap") == 0 && !(mask == attention_mask && call.has(attention_sinks));
}

bool has_mask_tiles(const OpCall& call, size_t mask) {
  const AttentionSizes n(call);
  const Type& type = call.operand(mask);
  const Shape steps = mask_steps(type, n);
  return type.dtype != DType::Bool && steps[2] == n.columns && steps[3] == 1;
}

int64_t mask_copy_bytes(const OpCall& call, size_t mask) {
  constexpr int64_t aligned_bytes = 256;
  if (!call.has(mask) || !has_mask_tiles(call, mask)) return 0;
  const Type& type = call.operand(mask);
  const int64_t columns = type.shape.back(), bytes = dtype_bytes(type.dtype);
  const int64_t pitch = cuda::mask_pitch(columns, bytes);
  return pitch == columns ? 0 : round_up(type.elements() / columns * pitch * bytes, aligned_bytes);
}

bool is_short_forward(const OpCall& call) {
  constexpr size_t mask = attention_mask;
  const AttentionSizes n(call);
  return std::max(n.depth, n.value_depth) <= 64 && n.depth % 8 == 0 && n.value_depth % 8 == 0 &&
         call.attrs.get_float("softcap") == 0 && !call.has(mask + attention_slopes) &&
         !call.has(mask + attention_segments) &&
         (!call.has(mask) || mask_steps(call.operand(mask), n)[2] == 0 || has_mask_tiles(call, mask));
}

cuda::OnePassSteps one_pass_steps(const OpCall& grad) {
  const AttentionSizes n(grad);
  return cuda::one_pass_steps(n.rows, n.columns, std::max(n.depth, n.value_depth), n.heads / n.kv_heads,
                              grad.attrs.get_int("causal"), grad.attrs.get_int("window"));
}

int64_t one_pass_tile_depth(const OpCall& grad) {
  const AttentionSizes n(grad);
  return cuda::one_pass_depth(std::max(n.depth, n.value_depth), grad.attrs.get_float("softcap") > 0);
}

int64_t mask_grad_partials_bytes(const OpCall& call) {
  const AttentionSizes n(call);
  const Type& mask = call.operand(attention_grad_mask);
  const MaskGradSizes sizes(mask);
  if (sizes.batch != 1 && mask.dtype == DType::F32) return 0;  // no mask is shared: one launch makes the gradient
  return cuda::mask_grad_parts(sizes.batch, sizes.heads, n.rows, n.columns, std::max(n.depth, n.value_depth), n.batch) *
         mask.elements() * static_cast<int64_t>(sizeof(float));
}

ScoreGradSizes::ScoreGradSizes(const OpCall& grad) {
  const AttentionSizes n(grad);
  const DType q = grad["q"].dtype, mask = grad["mask"].dtype;
  const MaskGradSizes of_mask(grad["mask"]);
  // Columns that are written at once.
  const int64_t run = mask == DType::F32 ? 2 : 8;
  is_result =
      (mask == q || mask == DType::F32) && of_mask.batch == n.batch && of_mask.heads == n.heads && n.columns % run == 0;
  is_wide = is_result && mask == DType::F32;
  pitch = is_result ? n.columns : round_up(n.columns, 8);
  bytes = n.batch * n.heads * n.rows * pitch * dtype_bytes(is_wide ? mask : q);
}

bool copies_mask(const OpCall& attention, bool is_hopper) {
  return is_hopper && is_short_forward(attention) && !are_small_windows(attention, attention_mask) &&
         mask_copy_bytes(attention, attention_mask) > 0;
}

OnePassBytes::OnePassBytes(const OpCall& grad) {
  const AttentionSizes n(grad);
  const int64_t row_tiles = n.batch * n.heads * divide_up(n.rows, cuda::one_pass_rows),
                widest = std::max(n.depth, n.value_depth);
  constexpr int64_t float_bytes = sizeof(float);
  parts = cuda::one_pass_parts(one_pass_steps(grad), n.batch * n.kv_heads, n.heads / n.kv_heads);
  sums = row_tiles * cuda::one_pass_rows * one_pass_tile_depth(grad) * float_bytes;
  partials = parts > 1 ? parts * n.batch * n.columns * n.kv_heads * (n.depth + n.value_depth) * float_bytes : 0;
  rows = row_products_bytes(grad);
  const int64_t numbers = row_tiles * cuda::one_pass_turns(widest) + 1;  // turns, and the next block
  all = sums + partials + 2 * rows + numbers * static_cast<int64_t>(sizeof(int32_t));
}

int64_t next_rows_bytes(const OpCall& call) {
  constexpr int64_t aligned_bytes = 16;
  const AttentionSizes n(call);
  const int64_t widest = std::max(n.depth, n.value_depth);
  return widest <= 64 && !are_small_windows(call, attention_mask) ? aligned_bytes : 0;
}

int64_t segment_tiles_bytes(const OpCall& call, size_t mask) {
  constexpr int64_t tile_rows = 64, tile_bytes = 16;
  if (!call.has(mask + attention_segments)) return 0;
  const Shape& segments = call.operand(mask + attention_segments).shape;
  return segments[0] * divide_up(segments[1], tile_rows) * tile_bytes;
}

int64_t column_tiles_bytes(const OpCall& call, size_t mask) {
  if (!call.has(mask)) return 0;
  const AttentionSizes n(call);
  const Shape steps = mask_steps(call.operand(mask), n);
  if (steps[1] != 0 || steps[2] != 0) return 0;
  return (steps[0] != 0 ? n.batch : 1) * divide_up(n.columns, noted_columns);
}

Dropout attention_dropout(const Attrs& attrs) {
  static_assert(dropout_rounds == DropoutRule::rounds);
  const double ratio = attrs.get_float("dropout");
  if (ratio == 0) return {};
  const DropoutRule rule = DropoutRule::of_probabilities(ratio);
  Dropout dropout{rule.blocks(), static_cast<float>(rule.kept_share()), static_cast<float>(rule.factor())};
  for (int i = 0; i < rule.bits; ++i) dropout.threshold_zeros[i] = (rule.dropped >> i & 1) - 1;
  return dropout;
}

int64_t first_dropout_block(const Attrs& attrs) {
  const DropoutRule rule = DropoutRule::of_probabilities(attrs.get_float("dropout"));
  return attrs.get_int("first_draw") / DropoutRule::columns_per_word * rule.blocks();
}

}  // namespace plimsoll
