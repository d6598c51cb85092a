#include "kernels/cuda/reduce/reduce_plan.h"
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

// How dy [..., columns] is summed for the bias where no epilogue does it.
cuda::ReductionPlan bias_sums(const Type& dy) {
  cuda::AlternatingShape shape;
  shape.add(dy.elements() / dy.shape.back(), true);
  shape.add(dy.shape.back(), false);
  return {shape, dtype_bytes(dy.dtype)};
}

bool accepts_weight_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!accepts_product<2>(call, results)) return false;
  if (results.size() == 1) return true;
  const cuda::ReductionPlan sums = bias_sums(call.operand(1));
  return call.operand(1).dtype != DType::F64 && sums.parts() * sums.outputs() <= INT32_MAX;
}

// Epilogues of 16-bit operands whose rows begin at 16-byte borders.
bool takes_epilogues(const OpCall& call, size_t matrices) {
  for (size_t i = 0; i < matrices; ++i)
    if (call.operand(i).shape.back() % 8 != 0) return false;
  return is_16_bit_float(call.operand(0).dtype);
}

bool accepts_bgrad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return results.size() == 2 && accepts_product<2>(call, results) && takes_epilogues(call, 2);
}

bool accepts_gelu_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_product<3>(call, results) && call.operand(0).dtype != DType::F64;
}

// The library knows gelu's tanh form alone.
bool accepts_dgelu(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_product<3>(call, results) && takes_epilogues(call, 3) &&
         call.attrs.get_string("approximate", "none") == "tanh";
}

int64_t product_workspace(const OpCall&, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  return device.product_workspace_bytes;
}

int64_t weight_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  const int64_t sums =
      results.size() == 1 ? 0 : bias_sums(call.operand(1)).workspace() * static_cast<int64_t>(sizeof(float));
  return std::max(device.product_workspace_bytes, sums);
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
    {"linear_gelu_grad", "cublaslt_dgelu", accepts_dgelu, product_workspace},
    {"linear_gelu_grad", "cublaslt_dgelu_2", accepts_dgelu, product_workspace},
    {"linear_gelu_grad", "cublaslt", accepts_gelu_grad, product_workspace},
    {"linear_dw", "cublaslt", accepts_weight_gradient, weight_gradient_workspace},
    {"linear_dw", "cublaslt_2", accepts_weight_gradient, weight_gradient_workspace},
    {"linear_dw", "cublaslt_3", accepts_weight_gradient, weight_gradient_workspace},
    {"linear_dw", "cublaslt_4", accepts_weight_gradient, weight_gradient_workspace},
    {"linear_dw", "cublaslt_bgrad", accepts_bgrad, product_workspace},
    {"linear_dw", "cublaslt_bgrad_2", accepts_bgrad, product_workspace},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_product_candidates() { return candidates; }

}  // namespace plimsoll
