#include "ir/ops/attention/attention_sizes.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/rotary.h"
#include "runtime/cuda/backend/launched.h"

#include <algorithm>

namespace plimsoll {
namespace {

// Strides with which a mask of two to four dimensions is read over the scores [batch, heads, rows, columns].
void set_mask(cuda::AttentionShape& shape, const Type& type, const void* mask) {
  shape.mask = mask;
  shape.mask_type = CudaCall::scalar_of(type.dtype);
  int64_t stride = 1;
  for (size_t d = type.shape.size(), at = 4; d-- > 0; stride *= type.shape[d])
    shape.mask_strides[--at] = type.shape[d] == 1 ? 0 : stride;
}

// The mask and rng operands stand at `mask` and `mask + 1`.
cuda::AttentionShape shape_of(const CudaCall& k, size_t mask) {
  const Attrs& attrs = k.call.attrs;
  const AttentionSizes n(k.call);
  cuda::AttentionShape shape{
      .batch = n.batch,
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
      .dropout = attrs.get_float("dropout"),
      .random = {k.in<int64_t>(mask + 1), static_cast<uint32_t>(attrs.get_int("id")), attrs.get_int("first_draw") / 4}};
  if (k.has(mask)) set_mask(shape, k.call.operand(mask), k.in(mask));
  return shape;
}

Status launch_attention(const CudaCall& k) {
  const AttentionSizes n(k.call);
  const int64_t bytes = dtype_bytes(k.operands[0].type.dtype);
  return launched(k, cuda::attention(shape_of(k, 3), k.out(0), k.out<float>(1), k.in(0),
                                     k.in<std::byte>(n.k_operand) + n.k_start * bytes,
                                     k.in<std::byte>(n.v_operand) + n.v_start * bytes, k.stream));
}

Status launch_attention_grad(const CudaCall& k) {
  const AttentionSizes n(k.call);
  const int64_t k_start = n.k_start * dtype_bytes(k.operands[0].type.dtype);
  const int64_t v_start = n.v_start * dtype_bytes(k.operands[0].type.dtype);
  const cuda::AttentionGradCall call{.dq = k.out(0),
                                     .dk = k.out<std::byte>(n.k_operand) + k_start,
                                     .dv = k.out<std::byte>(n.v_operand) + v_start,
                                     .q = k.in(0),
                                     .k = k.in<std::byte>(n.k_operand) + k_start,
                                     .v = k.in<std::byte>(n.v_operand) + v_start,
                                     .y = k.in(3),
                                     .dy = k.in(5),
                                     .lse = k.in<float>(4),
                                     .delta = static_cast<float*>(k.workspace)};
  return launched(k, cuda::attention_grad(shape_of(k, 6), call, k.stream));
}

Status launch_rotary(const CudaCall& k) {
  const Shape &x = k.call.operand(0).shape, &table = k.call.operand(1).shape;
  const int64_t heads = k.call.attrs.get_int("heads");
  const cuda::RotaryCall call{.y = k.out(0),
                              .x = k.in(0),
                              .cos = k.in(1),
                              .sin = k.in(2),
                              .type = k.in_scalar(0),
                              .table_type = k.in_scalar(1),
                              .rows = x[0] * x[1],
                              .heads = heads,
                              .depth = x[2] / heads,
                              .pairs = table[2],
                              .table_rows = table[0] * table[1],
                              .interleaved = k.call.attrs.get_int("interleaved") != 0,
                              .inverse = k.call.attrs.get_int("inverse") != 0};
  return launched(k, cuda::rotary(call, k.stream));
}

constexpr CudaLauncher launchers[] = {
    {"attention", "flash", launch_attention},
    {"attention_grad", "flash", launch_attention_grad},
    {"rotary", "pairs", launch_rotary},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_attention_launchers() { return launchers; }

}  // namespace plimsoll
