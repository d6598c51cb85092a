#include "runtime/cuda/backend/host_reference.h"

#include "ir/support/align.h"
#include "runtime/cuda/backend/device_memory.h"

namespace plimsoll {
namespace {

int64_t padded(const Type& type) { return align_to_tensor(type.bytes()); }

}  // namespace

HostReference::HostReference(const CudaCall& call, llvm::StringRef name, HostReferenceState& state)
    : op_(call.call.op), attrs_(call.call.attrs), name_(name), state_(state) {
  for (const TensorView& operand : call.operands) operand_types_.push_back(operand.type);
  for (size_t i = 0; i < operand_types_.size(); ++i)
    operand_pointers_.push_back(call.has(i) ? &operand_types_[i] : nullptr);
  for (const TensorView& result : call.results) result_types_.push_back(result.type);
}

int64_t HostReference::staging_bytes(const CudaCall& call) {
  int64_t bytes = 0;
  for (size_t i = 0; i < call.operands.size(); ++i)
    if (call.has(i)) bytes += padded(call.operands[i].type);
  for (const TensorView& result : call.results) bytes += padded(result.type);
  return bytes;
}

Status HostReference::launch(const CudaCall& call) {
  std::byte* at = state_.staging;
  auto copy = [&](void* to, const void* from, const Type& type) {
    return cuda_status(cudaMemcpyAsync(to, from, static_cast<size_t>(type.bytes()), cudaMemcpyDefault, call.stream),
                       name_);
  };
  for (size_t i = 0; i < operand_types_.size(); ++i) {
    if (!call.has(i)) continue;
    if (Status s = copy(at, call.operands[i].data, operand_types_[i])) return s;
    at += padded(operand_types_[i]);
  }
  if (Status s = cuda_status(cudaLaunchHostFunc(call.stream, compute, this), name_)) return s;
  for (size_t i = 0; i < result_types_.size(); ++i) {
    if (Status s = copy(call.results[i].data, at, result_types_[i])) return s;
    at += padded(result_types_[i]);
  }
  return Status::success();
}

// On a thread of the driver: no CUDA call is allowed here.
void CUDART_CB HostReference::compute(void* pointer) {
  auto& self = *static_cast<HostReference*>(pointer);
  if (self.state_.idle) return;
  std::byte* at = self.state_.staging;
  llvm::SmallVector<TensorView, 4> operands, results;
  auto next = [&](const Type& type) {
    TensorView view{type, at};
    at += padded(type);
    return view;
  };
  for (size_t i = 0; i < self.operand_types_.size(); ++i)
    operands.push_back(self.operand_pointers_[i] ? next(self.operand_types_[i]) : TensorView{});
  for (const Type& type : self.result_types_) results.push_back(next(type));
  Status status =
      self.op_.reference(ReferenceCall(OpCall(self.op_, self.attrs_, self.operand_pointers_), operands, results));
  if (!status) return;
  std::lock_guard<std::mutex> lock(self.state_.mutex);
  std::string text = take_diag(std::move(status)).text();
  if (self.state_.failure.empty()) self.state_.failure = self.name_ + ": " + text;
}

}  // namespace plimsoll
