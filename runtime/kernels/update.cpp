#include "runtime/kernels/update.h"

namespace plimsoll {

double running_share(const Attrs& attrs) {
  const auto count = static_cast<double>(attrs.get_int("count", 1));
  return (1 - attrs.get_float("momentum")) * (count > 1 ? count / (count - 1) : 1);
}

namespace {

// An f32 parameter with any gradient, or all of it bf16 but perhaps the moments, which are wide.
bool accepts_parameter(const OpCall& call) {
  const DType param = call.operand(0).dtype, grad = call.operand(1).dtype;
  return param == DType::F32 ? computes_in_f32(grad) : param == DType::BF16 && grad == DType::BF16;
}

bool accepts_adamw(const OpCall& call, llvm::ArrayRef<Type>) {
  const DType param = call.operand(0).dtype, moment = call.operand(2).dtype;
  return accepts_parameter(call) && (moment == param || moment == DType::F32) && call.operand(3).dtype == moment &&
         is_absent_or(call, 5, DType::F32) && is_absent_or(call, 6, DType::F32);
}

bool accepts_sgd(const OpCall& call, llvm::ArrayRef<Type>) {
  return accepts_parameter(call) && is_absent_or(call, 3, call.operand(0).dtype) && is_absent_or(call, 2, DType::F32) &&
         is_absent_or(call, 4, DType::F32);
}

bool accepts_running_update(const OpCall& call, llvm::ArrayRef<Type>) {
  return call.operand(0).dtype == DType::F32 && call.operand(1).dtype == DType::F32;
}

}  // namespace

namespace kernel {
constexpr CudaCandidate adamw_fused{op_adamw, "fused", accepts_adamw};
constexpr CudaCandidate sgd_fused{op_sgd, "fused", accepts_sgd};
constexpr CudaCandidate running_update_fused{op_running_update, "fused", accepts_running_update};
}  // namespace kernel

}  // namespace plimsoll
