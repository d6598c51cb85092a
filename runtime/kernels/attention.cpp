#include "runtime/kernels/attention.h"

#include "kernels/cuda/attention/few_rows_sizes.h"
#include "kernels/cuda/attention/one_pass_sizes.h"
#include "kernels/cuda/attention/sinks_grad_sizes.h"
#include "kernels/cuda/attention/whole_heads_sizes.h"
#include "runtime/kernels/attention_times.h"

namespace plimsoll {
namespace {

// Slopes of heads are f32, as recovery makes them.
template <size_t mask>
bool has_fitting_slopes(const OpCall& call) {
  const size_t slopes = mask + attention_slopes;
  return !call.has(slopes) || call.operand(slopes).dtype == DType::F32;
}

template <size_t mask>
bool accepts_flash(const OpCall& call, llvm::ArrayRef<Type>) {
  const AttentionSizes n(call);
  if (call.has(mask) && call.operand(mask).dtype != DType::Bool && !computes_in_f32(call.operand(mask).dtype))
    return false;
  return computes_in_f32(call.operand(0).dtype) && n.depth <= max_flash_depth && n.value_depth <= max_flash_depth &&
         has_fitting_slopes<mask>(call);
}

int64_t grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return row_products_bytes(call);
}

// ---- Our own on the matrix units: 16-bit floats ----

template <size_t mask>
bool accepts_mma(const OpCall& call, llvm::ArrayRef<Type>) {
  const AttentionSizes n(call);
  const DType dtype = call.operand(0).dtype;
  if (call.has(mask)) {
    const DType type = call.operand(mask).dtype;
    if (type != DType::Bool && type != DType::F32 && type != dtype) return false;
  }
  return is_16_bit_float(dtype) && n.depth <= max_flash_depth && n.value_depth <= max_flash_depth &&
         call.attrs.get_float("scale") > 0 && has_fitting_slopes<mask>(call);
}

int64_t mma_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  if (copies_mask(call, device.compute_capability == 90))
    return mask_copy_bytes(call, attention_mask) + next_rows_bytes(call);
  return next_rows_bytes(call) + segment_tiles_bytes(call, attention_mask) + column_tiles_bytes(call, attention_mask);
}

int64_t mma_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return row_products_bytes(call) + segment_tiles_bytes(call, attention_grad_mask) +
         column_tiles_bytes(call, attention_grad_mask);
}

// Slopes are parts of rows and of columns where columns beyond the row are closed.
bool has_one_pass_slopes(const OpCall& call, const AttentionSizes& n) {
  return !call.has(attention_grad_mask + attention_slopes) || (call.attrs.get_int("causal") && n.heads == n.kv_heads);
}

// Numbers that a mask adds to columns are read once for all heads of a key head.
bool has_one_pass_columns(const OpCall& call, const AttentionSizes& n) {
  if (!call.has(attention_grad_mask)) return true;
  const Shape steps = mask_steps(call.operand(attention_grad_mask), n);
  return steps[2] == 0 && (steps[1] == 0 || n.heads == n.kv_heads);
}

// Masks with rows that the copy engine brings for heads of up to 64 elements. They are added to sums at once: without
// caps and slopes.
bool has_one_pass_tiles(const OpCall& call, const AttentionSizes& n) {
  constexpr size_t mask = attention_grad_mask;
  return std::max(n.depth, n.value_depth) <= 64 && !call.has(mask + attention_slopes) && has_mask_tiles(call, mask) &&
         call.attrs.get_float("softcap") == 0;
}

// Without segments, on rows of whole 16-byte words. Small windows have kernels of their own.
bool accepts_one_pass(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AttentionSizes n(call);
  constexpr size_t mask = attention_grad_mask;
  return accepts_mma<mask>(call, results) && std::max(n.depth, n.value_depth) <= cuda::max_one_pass_depth &&
         n.depth % 8 == 0 && n.value_depth % 8 == 0 && has_one_pass_slopes(call, n) &&
         !call.has(mask + attention_segments) && !are_small_windows(call, mask) &&
         (has_one_pass_columns(call, n) || has_one_pass_tiles(call, n));
}

int64_t one_pass_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return mask_copy_bytes(call, attention_grad_mask) + OnePassBytes(call).all +
         column_tiles_bytes(call, attention_grad_mask);
}

// The copy engine takes dS, too.
bool accepts_one_pass_with_mask(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_one_pass(call, results) && has_one_pass_tiles(call, AttentionSizes(call)) &&
         !ScoreGradSizes(call).is_wide;
}

int64_t one_pass_with_mask_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return mask_copy_bytes(call, attention_grad_mask) + ScoreGradSizes(call).workspace_bytes() + OnePassBytes(call).all;
}

int64_t mma_mask_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return row_products_bytes(call) + mask_grad_partials_bytes(call) + segment_tiles_bytes(call, attention_grad_mask);
}

// As kernels for warpgroups write dS: without caps, whose slope is in dq's dS and not in the mask's.
bool accepts_stored_scores(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AttentionSizes n(call);
  return accepts_mma<attention_grad_mask>(call, results) && std::max(n.depth, n.value_depth) > 32 &&
         call.attrs.get_float("softcap") == 0;
}

int64_t stored_scores_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return row_products_bytes(call) + ScoreGradSizes(call).workspace_bytes() +
         segment_tiles_bytes(call, attention_grad_mask);
}

int64_t sinks_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  const SinksSizes n(call);
  return cuda::sinks_grad_parts(n.heads, n.batch * n.rows) * n.heads * static_cast<int64_t>(sizeof(float));
}

// Each with its own key head, without caps, slopes, segments and masks with rows, and without dropout but in heads of
// one tile. Small windows have a kernel of their own.
bool accepts_whole_heads(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AttentionSizes n(call);
  constexpr size_t mask = attention_grad_mask;
  return accepts_mma<mask>(call, results) && n.heads == n.kv_heads && n.depth == n.value_depth &&
         cuda::fits_whole_heads(n.rows, n.columns, n.depth) &&
         (call.attrs.get_float("dropout") == 0 || cuda::are_short_heads(n.rows, n.columns)) &&
         call.attrs.get_float("softcap") == 0 && !call.has(mask + attention_slopes) &&
         !call.has(mask + attention_segments) && (!call.has(mask) || mask_steps(call.operand(mask), n)[2] == 0) &&
         !are_small_windows(call, mask);
}

template <size_t mask>
bool accepts_few_rows(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AttentionSizes n(call);
  return accepts_mma<mask>(call, results) && cuda::are_few_rows(n.rows, n.columns, n.depth, n.value_depth) &&
         (mask == attention_mask || n.heads == n.kv_heads);
}

bool accepts_sinks_grad(const OpCall& call, llvm::ArrayRef<Type>) {
  return computes_in_f32(call.operand(0).dtype) && call["lse"].dtype == DType::F32 &&
         computes_in_f32(call["sinks"].dtype);
}

bool accepts_rotary(const OpCall& call, llvm::ArrayRef<Type>) {
  const DType x = call.operand(0).dtype, table = call.operand(1).dtype;
  return computes_in_f32(x) && (table == DType::F32 || table == x) && call.operand(2).dtype == table;
}

// ---- cuDNN: 16-bit floats without mask, dropout, cap or sinks ----

// Small windows have kernels of their own: cuDNN's tiles of 128 rows take three to four times as long for them.

template <size_t mask>
bool accepts_cudnn(const OpCall& call, llvm::ArrayRef<Type>) {
  const AttentionSizes n(call);
  const bool causal = call.attrs.get_int("causal");
  const bool is_plain = !call.has(mask) && !call.has(mask + attention_slopes) && !call.has(mask + attention_segments) &&
                        !(mask == attention_mask && call.has(attention_sinks)) && call.attrs.get_float("softcap") == 0;
  return is_16_bit_float(call.operand(0).dtype) && is_plain && call.attrs.get_float("dropout") == 0 &&
         !are_small_windows(call, mask) && call.attrs.get_int("window") == 0 && n.depth % 8 == 0 && n.depth <= 128 &&
         n.value_depth == n.depth && n.batch * n.rows * n.depth > 0 && n.columns > 0 &&
         (!causal || n.rows == n.columns);
}

constexpr int64_t slack = int64_t{1} << 20;  // cuDNN's own row counters and alignment

int64_t cudnn_workspace(const OpCall&, llvm::ArrayRef<Type>, const DeviceDescription&) { return slack; }

// cuDNN 9 asks for dq in f32 and sums of rows, on chips before Hopper dk and dv's share too, and with fewer
// key heads than query heads both at all query heads in 16 bits. Times round up to whole tiles of 128.
int64_t cudnn_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = (n.rows + 127) / 128 * 128, columns = (n.columns + 127) / 128 * 128;
  int64_t bytes = 4 * n.batch * n.heads * rows * (device.compute_capability >= 90 ? n.depth + 1 : 2 * n.depth + 1);
  if (n.heads != n.kv_heads) bytes += 2 * 2 * n.batch * n.heads * columns * n.depth;
  return bytes + slack;
}

constexpr int64_t max_ordered_bytes = int64_t{256} << 20;

// In a fixed order cuDNN keeps all probabilities in 16 bits; the batch is cut in pieces so that they stay small.
int64_t cudnn_ordered_grad_workspace(const OpCall& call, llvm::ArrayRef<Type> results,
                                     const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = (n.rows + 127) / 128 * 128, columns = (n.columns + 127) / 128 * 128;
  const int64_t whole = cudnn_grad_workspace(call, results, device) - slack + 2 * n.batch * n.heads * rows * columns;
  return std::max(whole / n.batch, std::min(whole, max_ordered_bytes)) + slack;
}
// By time where all of an op have one, else in this order: cuDNN's are as fast as "mma" or faster on other cards.
constexpr CudaCandidate attention_table[] = {
    {.op = op_attention,
     .name = "cudnn",
     .accepts = accepts_cudnn<attention_mask>,
     .workspace_bytes = cudnn_workspace,
     .predicted_us = cudnn_us},
    {.op = op_attention_grad,
     .name = "whole_heads",
     .accepts = accepts_whole_heads,
     .predicted_us = whole_heads_us,
     .capability = 90},
    {.op = op_attention_grad,
     .name = "one_pass",
     .accepts = accepts_one_pass,
     .workspace_bytes = one_pass_workspace,
     .predicted_us = one_pass_us,
     .capability = 90},
    {.op = op_attention,
     .name = "few_rows",
     .accepts = accepts_few_rows<attention_mask>,
     .predicted_us = few_rows_us,
     .capability = 90},
    {.op = op_attention_grad,
     .name = "few_rows",
     .accepts = accepts_few_rows<attention_grad_mask>,
     .predicted_us = few_rows_grad_us,
     .capability = 90},
    {op_attention_grad, "cudnn", accepts_cudnn<attention_grad_mask>, cudnn_grad_workspace, /*any_order=*/true},
    {op_attention_grad, "cudnn_ordered", accepts_cudnn<attention_grad_mask>, cudnn_ordered_grad_workspace},
    {.op = op_attention,
     .name = "mma",
     .accepts = accepts_mma<attention_mask>,
     .workspace_bytes = mma_workspace,
     .predicted_us = attention_us},
    {.op = op_attention_grad,
     .name = "mma",
     .accepts = accepts_mma<attention_grad_mask>,
     .workspace_bytes = mma_grad_workspace,
     .predicted_us = mma_grad_us},
    {.op = op_attention, .name = "flash", .accepts = accepts_flash<attention_mask>, .predicted_us = flash_us},
    {.op = op_attention_grad,
     .name = "flash",
     .accepts = accepts_flash<attention_grad_mask>,
     .workspace_bytes = grad_workspace,
     .predicted_us = flash_grad_us},
    {.op = op_attention_mask_grad,
     .name = "mma",
     .accepts = accepts_mma<attention_grad_mask>,
     .workspace_bytes = mma_mask_grad_workspace,
     .predicted_us = mask_grad_us},
    {op_attention_mask_grad, "flash", accepts_flash<attention_grad_mask>},
    {.op = op_attention_grad_with_mask,
     .name = "one_pass",
     .accepts = accepts_one_pass_with_mask,
     .workspace_bytes = one_pass_with_mask_workspace,
     .predicted_us = one_pass_with_mask_us,
     .capability = 90},
    {.op = op_attention_grad_with_mask,
     .name = "stored_scores",
     .accepts = accepts_stored_scores,
     .workspace_bytes = stored_scores_workspace,
     .predicted_us = stored_scores_us,
     .capability = 90},
    {.op = op_attention_grad_with_mask,
     .name = "mma",
     .accepts = accepts_mma<attention_grad_mask>,
     .workspace_bytes = mma_mask_grad_workspace,
     .predicted_us = grad_with_mask_us},
    {.op = op_attention_grad_with_mask,
     .name = "flash",
     .accepts = accepts_flash<attention_grad_mask>,
     .workspace_bytes = grad_workspace,
     .predicted_us = flash_with_mask_us},
    {.op = op_attention_grad_with_mask,
     .name = "stored_scores_lean",
     .accepts = accepts_stored_scores,
     .workspace_bytes = mma_mask_grad_workspace,
     .predicted_us = grad_with_mask_us,
     .capability = 90},
    {.op = op_attention_sinks_grad,
     .name = "dots",
     .accepts = accepts_sinks_grad,
     .workspace_bytes = sinks_grad_workspace,
     .predicted_us = sinks_grad_us},
    {.op = op_rotary, .name = "pairs", .accepts = accepts_rotary, .predicted_us = rotary_us},
};
}  // namespace

llvm::ArrayRef<CudaCandidate> attention_candidates() { return attention_table; }

}  // namespace plimsoll
