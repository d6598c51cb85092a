#include "kernels/cuda/common/partials.h"
#include "runtime/cuda/float_types.h"

namespace plimsoll {
namespace {

bool is_label(DType dtype) { return dtype == DType::I64 || dtype == DType::I32; }

// Everything but the scores and the labels is f32.
bool accepts_classes(const OpCall& call, DType scores, size_t labels, size_t first_f32) {
  for (size_t i = first_f32; i < call.count(); ++i)
    if (!is_absent_or(call, i, DType::F32)) return false;
  return computes_in_f32(scores) && is_label(call.operand(labels).dtype);
}

bool accepts_loss(const OpCall& call, llvm::ArrayRef<Type>) {
  return accepts_classes(call, call.operand(0).dtype, 1, 2);
}

bool accepts_nll_loss_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_classes(call, results[0].dtype, 0, 1);
}

int64_t loss_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::loss_workspace(call.operand(1).elements()) * static_cast<int64_t>(sizeof(float));
}

constexpr CudaCandidate candidates[] = {
    {"cross_entropy", "rows", accepts_loss, loss_workspace},
    {"cross_entropy_grad", "rows", accepts_loss},
    {"nll_loss", "rows", accepts_loss, loss_workspace},
    {"nll_loss_grad", "elements", accepts_nll_loss_grad},
    {"softmax", "rows", one_float_type},
    {"softmax_grad", "rows", one_float_type},
    {"log_softmax", "rows", one_float_type},
    {"log_softmax_grad", "rows", one_float_type},
    {"hardmax", "rows", one_float_type},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_loss_candidates() { return candidates; }

}  // namespace plimsoll
