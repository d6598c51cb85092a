#include "runtime/kernels/loss.h"

#include "kernels/cuda/common/partials.h"

namespace plimsoll {

LossReduction reduction_of(const OpCall& call) {
  const llvm::StringRef reduction = call.get_string("reduction");
  if (reduction == "none") return LossReduction::None;
  return reduction == "sum" ? LossReduction::Sum : LossReduction::Mean;
}

namespace {

// Every operand behind the labels is f32.
bool accepts_classes(const OpCall& call, DType scores) {
  return computes_in_f32(scores) && is_label(call["labels"].dtype) &&
         all_operands(
             call, [](const Type& type) { return type.dtype == DType::F32; }, call.index("labels") + 1);
}

bool accepts_loss(const OpCall& call, llvm::ArrayRef<Type>) { return accepts_classes(call, call.operand(0).dtype); }

bool accepts_nll_loss_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_classes(call, results[0].dtype);
}

int64_t loss_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::loss_workspace(call["labels"].elements()) * static_cast<int64_t>(sizeof(float));
}

constexpr CudaCandidate candidates[] = {
    {op_cross_entropy, "rows", accepts_loss, loss_workspace},
    {op_cross_entropy_grad, "rows", accepts_loss},
    {op_cross_entropy_with_grad, "rows", accepts_loss, loss_workspace},
    {op_nll_loss, "rows", accepts_loss, loss_workspace},
    {op_nll_loss_grad, "elements", accepts_nll_loss_grad},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> loss_candidates() { return candidates; }

}  // namespace plimsoll
