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

// Of the 16-bit copy of an updated parameter.
int64_t copy_bytes(const OpCall& call) {
  return call.gives("copy") ? call["param"].elements() * dtype_bytes(call.attrs.get_dtype("copy_dtype")) : 0;
}

// All operands are read, `written` of them replaced, and `bytes` written besides.
double update_us(const OpCall& call, std::initializer_list<PortKey> written, const DeviceDescription& device,
                 int64_t bytes = 0) {
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i)) bytes += call.operand(i).bytes();
  for (const PortKey& each : written)
    if (call.has(each)) bytes += call[each].bytes();
  return gathered_us(call, call.operand(0).elements(), bytes, device);
}

double adamw_us(const OpCall& call, const DeviceDescription& device) {
  return update_us(call, {"param", "m", "v"}, device, copy_bytes(call));
}
double adamw_8bit_us(const OpCall& call, const DeviceDescription& device) {
  return update_us(call, {"param", "m", "v", "scales"}, device);
}
double sgd_us(const OpCall& call, const DeviceDescription& device) {
  return update_us(call, {"param", "momentum"}, device, copy_bytes(call));
}
double running_update_us(const OpCall& call, const DeviceDescription& device) {
  return update_us(call, {"running"}, device);
}

constexpr CudaCandidate fused(const OpDef& op, CudaCandidate::AcceptsFn accepts, CudaCandidate::TimeFn predicted_us) {
  return {.op = op, .name = "fused", .accepts = accepts, .predicted_us = predicted_us, .shares_launches = accepts};
}

constexpr CudaCandidate update_table[] = {
    fused(op_adamw, accepts_adamw, adamw_us),
    fused(op_adamw_8bit, accepts_adamw_8bit, adamw_8bit_us),
    fused(op_sgd, accepts_sgd, sgd_us),
    fused(op_running_update, accepts_running_update, running_update_us),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> update_candidates() { return update_table; }

}  // namespace plimsoll
