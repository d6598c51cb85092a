#include "runtime/cpu/widened.h"

#include "ir/support/align.h"
#include "kernels/cpu/elementwise/cast.h"

namespace plimsoll {
namespace {

bool is_widened(DType dtype) { return dtype == DType::BF16 || dtype == DType::F16; }

Type widened(const Type& type) { return is_widened(type.dtype) ? Type(DType::F32, type.shape) : type; }

int64_t copy_bytes_of(const Type& type) {
  return is_widened(type.dtype) ? align_up(type.elements() * int64_t{sizeof(float)}, 64) : 0;
}

// Hands out the workspace from its start; what is left belongs to the kernel.
class Copies {
 public:
  explicit Copies(void* workspace) : next_(static_cast<std::byte*>(workspace)) {}

  TensorView view_for(const TensorView& narrow) {
    if (!narrow.data || !is_widened(narrow.type.dtype)) return narrow;
    TensorView copy{widened(narrow.type), next_};
    next_ += copy_bytes_of(narrow.type);
    return copy;
  }
  void* rest() const { return next_; }

 private:
  std::byte* next_;
};

}  // namespace

WidenedCall::WidenedCall(const OpCall& call, llvm::ArrayRef<Type> results) : op_(call.op), attrs_(call.attrs) {
  for (size_t i = 0; i < call.count(); ++i) {
    operands_.push_back(call.has(i) ? widened(call.operand(i)) : Type());
    if (call.has(i)) copies_bytes_ += copy_bytes_of(call.operand(i));
  }
  for (size_t i = 0; i < call.count(); ++i) operand_types_.push_back(call.has(i) ? &operands_[i] : nullptr);
  for (const Type& result : results) {
    results_.push_back(widened(result));
    copies_bytes_ += copy_bytes_of(result);
  }
}

Status launch_widened(const CpuKernel& kernel, const CpuCall& k) {
  const WidenedCall wide(k.call, k.result_types());
  const OpCall call = wide.call();
  Copies copies(k.workspace);
  llvm::SmallVector<TensorView, 6> operands, results;
  for (const TensorView& operand : k.operands) {
    operands.push_back(copies.view_for(operand));
    if (operands.back().data != operand.data)
      cpu::cast_elements(operands.back().data, Scalar::F32, operand.data, scalar_of(operand.type.dtype),
                         operand.elements());
  }
  for (const TensorView& result : k.results) results.push_back(copies.view_for(result));
  if (Status s = kernel.launch({{call, operands, results, copies.rest()}, k.prepared})) return s;
  for (size_t i = 0; i < results.size(); ++i)
    if (results[i].data != k.results[i].data)
      cpu::cast_elements(k.results[i].data, scalar_of(k.results[i].type.dtype), results[i].data, Scalar::F32,
                         results[i].elements());
  return Status::success();
}

}  // namespace plimsoll
