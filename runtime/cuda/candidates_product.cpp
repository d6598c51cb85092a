#include "runtime/cuda/candidates.h"

namespace plimsoll {
namespace {

bool is_product_dtype(DType dtype) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16 || dtype == DType::F64;
}

// Operands of one float dtype and nothing empty. The result may be f32 where the operands have 16 bits; inference has
// seen that an addend, behind the `factors`, is of the result's type.
template <size_t factors>
bool accepts_product(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType dtype = call.operand(0).dtype, y = results[0].dtype;
  if (!is_product_dtype(dtype) || (y != dtype && !(y == DType::F32 && is_16_bit_float(dtype)))) return false;
  for (size_t i = 0; i < factors; ++i)
    if (call.has(i) && (call.operand(i).dtype != dtype || call.operand(i).elements() == 0)) return false;
  return results[0].elements() > 0;
}

int64_t product_workspace(const OpCall&, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  return device.product_workspace_bytes;
}

// cuBLASLt's own first to fourth choice of algorithm: without measured times the first is taken.
constexpr CudaCandidate candidates[] = {
    {"matmul", "cublaslt", accepts_product<2>, product_workspace},
    {"matmul", "cublaslt_2", accepts_product<2>, product_workspace},
    {"matmul", "cublaslt_3", accepts_product<2>, product_workspace},
    {"matmul", "cublaslt_4", accepts_product<2>, product_workspace},
    {"linear", "cublaslt", accepts_product<3>, product_workspace},
    {"linear", "cublaslt_2", accepts_product<3>, product_workspace},
    {"linear", "cublaslt_3", accepts_product<3>, product_workspace},
    {"linear", "cublaslt_4", accepts_product<3>, product_workspace},
    {"linear_dw", "cublaslt", accepts_product<2>, product_workspace},
    {"linear_dw", "cublaslt_2", accepts_product<2>, product_workspace},
    {"linear_dw", "cublaslt_3", accepts_product<2>, product_workspace},
    {"linear_dw", "cublaslt_4", accepts_product<2>, product_workspace},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_product_candidates() { return candidates; }

}  // namespace plimsoll
