#include "runtime/kernels/update.h"

namespace plimsoll {

double running_share(const OpCall& call) {
  const auto count = static_cast<double>(call.get_int("count"));
  return (1 - call.get_float("momentum")) * (count > 1 ? count / (count - 1) : 1);
}

namespace {

// An f32 parameter with any gradient, or all of it bf16 but perhaps the moments, which are wide.
bool accepts_parameter(const OpCall& call) {
  const DType param = call["param"].dtype, grad = call["grad"].dtype;
  return param == DType::F32 ? computes_in_f32(grad) : param == DType::BF16 && grad == DType::BF16;
}

// The same, and a gradient in f32, which is one that was summed over micro-batches.
bool accepts_adam_parameter(const OpCall& call) {
  return accepts_parameter(call) || (call["param"].dtype == DType::BF16 && call["grad"].dtype == DType::F32);
}

bool accepts_adamw(const OpCall& call, llvm::ArrayRef<Type>) {
  const DType param = call["param"].dtype, moment = call["m"].dtype;
  return accepts_adam_parameter(call) && (moment == param || moment == DType::F32 || moment == DType::BF16) &&
         call["v"].dtype == moment && is_absent_or(call, "lr", DType::F32) && is_absent_or(call, "scale", DType::F32);
}

bool accepts_adamw_8bit(const OpCall& call, llvm::ArrayRef<Type>) {
  return accepts_adam_parameter(call) && is_absent_or(call, "lr", DType::F32) &&
         is_absent_or(call, "scale", DType::F32);
}

bool accepts_sgd(const OpCall& call, llvm::ArrayRef<Type>) {
  return accepts_parameter(call) && is_absent_or(call, "momentum", call["param"].dtype) &&
         is_absent_or(call, "lr", DType::F32) && is_absent_or(call, "scale", DType::F32);
}

bool accepts_running_update(const OpCall& call, llvm::ArrayRef<Type>) {
  return call["running"].dtype == DType::F32 && call["batch"].dtype == DType::F32;
}

constexpr CudaCandidate candidates[] = {
    {.op = op_adamw, .name = "fused", .accepts = accepts_adamw, .shares_launches = accepts_adamw},
    {.op = op_adamw_8bit, .name = "fused", .accepts = accepts_adamw_8bit, .shares_launches = accepts_adamw_8bit},
    {.op = op_sgd, .name = "fused", .accepts = accepts_sgd, .shares_launches = accepts_sgd},
    {.op = op_running_update,
     .name = "fused",
     .accepts = accepts_running_update,
     .shares_launches = accepts_running_update},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> update_candidates() { return candidates; }

}  // namespace plimsoll
