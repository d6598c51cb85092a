#include "ir/ops/attention/attention_sizes.h"
#include "runtime/cuda/float_types.h"

namespace plimsoll {
namespace {

constexpr int64_t max_depth = 256;  // of a head, as in kernels/cuda/attention/attention.h

// The mask is an operand after q, k and v.
bool accepts_heads(const OpCall& call, size_t mask) {
  const AttentionSizes n(call);
  if (call.has(mask) && call.operand(mask).dtype != DType::Bool && !computes_in_f32(call.operand(mask).dtype))
    return false;
  return computes_in_f32(call.operand(0).dtype) && n.depth <= max_depth && n.value_depth <= max_depth;
}

bool accepts_attention(const OpCall& call, llvm::ArrayRef<Type>) { return accepts_heads(call, 3); }
bool accepts_attention_grad(const OpCall& call, llvm::ArrayRef<Type>) { return accepts_heads(call, 6); }

// One float a row of scores.
int64_t attention_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return call.operand(4).elements() * static_cast<int64_t>(sizeof(float));
}

bool accepts_rotary(const OpCall& call, llvm::ArrayRef<Type>) {
  const DType x = call.operand(0).dtype, table = call.operand(1).dtype;
  return computes_in_f32(x) && (table == DType::F32 || table == x) && call.operand(2).dtype == table;
}

constexpr CudaCandidate candidates[] = {
    {"attention", "flash", accepts_attention},
    {"attention_grad", "flash", accepts_attention_grad, attention_grad_workspace},
    {"rotary", "pairs", accepts_rotary},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_attention_candidates() { return candidates; }

}  // namespace plimsoll
