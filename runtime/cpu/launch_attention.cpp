#include "ir/ops/attention/attention_sizes.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/rotary.h"
#include "runtime/cpu/kernels_families.h"

namespace plimsoll {
namespace {

// The mask and rng operands stand at `mask` and `mask + 1`.
cpu::AttentionShape shape_of(const KernelCall& k, size_t mask) {
  const Attrs& attrs = k.call.attrs;
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
                            .causal = attrs.get_int("causal") != 0};
  if (k.has(mask)) {
    const Type& type = k.call.operand(mask);
    shape.mask_kind = type.dtype == DType::Bool ? cpu::MaskKind::Bool : cpu::MaskKind::Float;
    shape.mask = k.operands[mask].data;
    const Shape steps = broadcast_steps(type.shape, {shape.batch, shape.heads, shape.rows, shape.columns});
    std::copy(steps.begin(), steps.end(), shape.mask_strides);
  }
  shape.dropout = attrs.get_float("dropout");
  if (shape.dropout > 0) {
    const int64_t* rng = k.in<int64_t>(mask + 1);
    shape.random = {static_cast<uint64_t>(rng[0]), static_cast<uint32_t>(rng[1]),
                    static_cast<uint32_t>(attrs.get_int("id")), attrs.get_int("first_draw") / 4};
  }
  return shape;
}

bool accepts_attention(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AttentionSizes n(call);
  return floats_are_f32(call, results) && n.depth <= cpu::max_head_size && n.value_depth <= cpu::max_head_size;
}

Status launch_attention(const KernelCall& k) {
  const AttentionSizes n(k.call);
  cpu::attention(shape_of(k, 3), k.out<float>(0), k.out<float>(1), k.in<float>(0), k.in<float>(n.k_operand) + n.k_start,
                 k.in<float>(n.v_operand) + n.v_start);
  return Status::success();
}

// One float a row of scores.
int64_t attention_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>) {
  return call.operand(4).elements() * static_cast<int64_t>(sizeof(float));
}

Status launch_attention_grad(const KernelCall& k) {
  const AttentionSizes n(k.call);
  cpu::attention_grad(shape_of(k, 6), k.out<float>(0), k.out<float>(n.k_operand) + n.k_start,
                      k.out<float>(n.v_operand) + n.v_start, k.in<float>(0), k.in<float>(n.k_operand) + n.k_start,
                      k.in<float>(n.v_operand) + n.v_start, k.in<float>(3), k.in<float>(4), k.in<float>(5),
                      static_cast<float*>(k.workspace));
  return Status::success();
}

Status launch_rotary(const KernelCall& k) {
  const Shape &x = k.call.operand(0).shape, &table = k.call.operand(1).shape;
  const int64_t heads = k.call.attrs.get_int("heads");
  cpu::rotary({.batch = x[0],
               .rows = x[1],
               .heads = heads,
               .head_size = x[2] / heads,
               .pairs = table[2],
               .table_batch = table[0],
               .interleaved = k.call.attrs.get_int("interleaved") != 0,
               .inverse = k.call.attrs.get_int("inverse") != 0},
              k.out<float>(0), k.in<float>(0), k.in<float>(1), k.in<float>(2));
  return Status::success();
}

constexpr CpuKernel kernels[] = {
    {"attention", "blocked", accepts_attention, launch_attention},
    {"attention_grad", "blocked", accepts_attention, launch_attention_grad, attention_grad_workspace},
    {"rotary", "vectorised", all_f32, launch_rotary},
};

}  // namespace

llvm::ArrayRef<CpuKernel> attention_kernels() { return kernels; }

}  // namespace plimsoll
