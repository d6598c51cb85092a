#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/rotary.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/random_stream.h"
#include "runtime/kernels/attention.h"

namespace plimsoll {
namespace {

cpu::AttentionShape shape_of(const CpuCall& k, size_t mask) {
  const size_t slopes = mask + attention_slopes, segments = mask + attention_segments;
  const Attrs& attrs = k.attrs();
  const AttentionSizes n(k.call);
  cpu::AttentionShape shape{.batch = n.batch,
                            .rows = n.rows,
                            .columns = n.columns,
                            .heads = n.heads,
                            .kv_heads = n.kv_heads,
                            .head_size = n.depth,
                            .value_size = n.value_depth,
                            .q_step = n.q_step,
                            .k_step = n.k_step,
                            .v_step = n.v_step,
                            .scale = static_cast<float>(attrs.get_float("scale")),
                            .causal = attrs.get_int("causal") != 0,
                            .window = attrs.get_int("window"),
                            .softcap = static_cast<float>(attrs.get_float("softcap"))};
  if (k.has(mask)) {
    const Type& type = k.call.operand(mask);
    shape.mask_kind = type.dtype == DType::Bool ? cpu::MaskKind::Bool : cpu::MaskKind::Float;
    shape.mask = k.operands[mask].data;
    llvm::copy(mask_steps(type, n), shape.mask_strides);
  }
  if (k.has(slopes)) shape.slopes = k.in<float>(slopes);
  if (k.has(segments)) {
    shape.segments = k.in<int64_t>(segments);
    shape.segments_step = segments_step(k.call.operand(segments));
  }
  shape.dropout = attention_dropout(attrs);
  shape.drawn_heads = n.drawn_heads;
  if (shape.dropout.blocks > 0) {
    shape.random = random_stream(k, mask + 1);
    shape.random.first_block = first_dropout_block(attrs);
  }
  return shape;
}

bool accepts_attention(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AttentionSizes n(call);
  return floats_are_f32(call, results) && n.depth <= cpu::max_head_size && n.value_depth <= cpu::max_head_size;
}

Status launch_attention(const CpuCall& k) {
  const AttentionSizes n(k.call);
  cpu::attention(shape_of(k, attention_mask), k.out<float>(0), k.out<float>(1), k.in<float>(0),
                 k.in<float>(n.k_operand) + n.k_start, k.in<float>(n.v_operand) + n.v_start,
                 k.has(attention_sinks) ? k.in<float>(attention_sinks) : nullptr);
  return Status::success();
}

int64_t attention_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>) { return row_products_bytes(call); }

// dq, dk and dv stand from result `first` on.
void run_attention_grad(const CpuCall& k, size_t first) {
  const AttentionSizes n(k.call);
  cpu::attention_grad(shape_of(k, attention_grad_mask), k.out<float>(first),
                      k.out<float>(first + n.k_operand) + n.k_start, k.out<float>(first + n.v_operand) + n.v_start,
                      k.in<float>(0), k.in<float>(n.k_operand) + n.k_start, k.in<float>(n.v_operand) + n.v_start,
                      k.in<float>(3), k.in<float>(4), k.in<float>(5), k.scratch<float>());
}

Status launch_attention_grad(const CpuCall& k) {
  run_attention_grad(k, 0);
  return Status::success();
}

Status launch_attention_mask_grad(const CpuCall& k) {
  const AttentionSizes n(k.call);
  cpu::attention_mask_grad(shape_of(k, attention_grad_mask), k.out<float>(0), k.call.operand(6).elements(),
                           k.in<float>(0), k.in<float>(n.k_operand) + n.k_start, k.in<float>(n.v_operand) + n.v_start,
                           k.in<float>(3), k.in<float>(4), k.in<float>(5), k.scratch<float>());
  return Status::success();
}

// Tasks of one own samples, those of the other what heads add to the mask, so that each makes dS for itself.
Status launch_attention_grad_with_mask(const CpuCall& k) {
  run_attention_grad(k, 1);
  return launch_attention_mask_grad(k);
}

Status launch_attention_sinks_grad(const CpuCall& k) {
  const SinksSizes n(k.call);
  cpu::attention_sinks_grad({n.batch, n.rows, n.heads, n.depth}, k.out<float>(0), k.in<float>(0), k.in<float>(1),
                            k.in<float>(2), k.in<float>(3));
  return Status::success();
}

Status launch_rotary(const CpuCall& k) {
  const RotarySizes n(k.call);
  cpu::rotary({.batch = n.batch,
               .rows = n.rows,
               .heads = n.heads,
               .turned = n.turned,
               .head_size = n.depth,
               .pairs = n.pairs,
               .table_batch = n.table_batch,
               .interleaved = n.interleaved,
               .inverse = n.inverse},
              k.out<float>(0), k.in<float>(0), k.in<float>(1), k.in<float>(2));
  return Status::success();
}

constexpr CpuKernel attention_table[] = {
    {op_attention, "blocked", accepts_attention, launch_attention},
    {op_attention_grad, "blocked", accepts_attention, launch_attention_grad, attention_grad_workspace},
    {op_attention_mask_grad, "blocked", accepts_attention, launch_attention_mask_grad, attention_grad_workspace},
    {op_attention_grad_with_mask, "blocked", accepts_attention, launch_attention_grad_with_mask,
     attention_grad_workspace},
    {op_attention_sinks_grad, "dots", all_f32, launch_attention_sinks_grad},
    {op_rotary, "vectorised", all_f32, launch_rotary},
};

}  // namespace

llvm::ArrayRef<CpuKernel> attention_kernels() { return attention_table; }

}  // namespace plimsoll
