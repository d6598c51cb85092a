#include "runtime/kernels/matmul.h"

#include "runtime/kernels/elementwise.h"
#include "runtime/kernels/reduce.h"

namespace plimsoll {

LoopNest<3> matmul_batch(const Type& y, const Type& a, const Type& b) {
  auto batch_of = [](const Type& type) { return llvm::ArrayRef<int64_t>(type.shape).drop_back(2); };
  auto steps_of = [&](const Type& type) {
    Shape steps = broadcast_steps(batch_of(type), batch_of(y));
    for (int64_t& step : steps) step *= type.shape[type.rank() - 1] * type.shape[type.rank() - 2];
    return steps;
  };
  const Shape y_steps = steps_of(y), a_steps = steps_of(a), b_steps = steps_of(b);
  LoopNest<3> batch;
  for (size_t d = 0; d < y_steps.size(); ++d) batch.add_dimension(y.shape[d], {y_steps[d], a_steps[d], b_steps[d]});
  return batch;
}

namespace {

// Operands of one float dtype and nothing empty. The result may be f32 where the operands have 16 bits; inference has
// seen that an addend, behind the `factors`, is of the result's type.
template <size_t factors>
bool accepts_matmul(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType dtype = call.operand(0).dtype, y = results[0].dtype;
  if (!computes_in_f32(dtype) && dtype != DType::F64) return false;
  if (y != dtype && !(y == DType::F32 && is_16_bit_float(dtype))) return false;
  for (size_t i = 0; i < factors; ++i)
    if (call.has(i) && (call.operand(i).dtype != dtype || call.operand(i).elements() == 0)) return false;
  return results[0].elements() > 0;
}

// Where no epilogue sums dy for the bias, a reduction does.
cuda::ReductionPlan bias_sums(const Type& dy) { return {row_sums(dy), dtype_bytes(dy.dtype)}; }

bool accepts_weight_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!accepts_matmul<2>(call, results)) return false;
  if (results.size() == 1) return true;
  const cuda::ReductionPlan sums = bias_sums(call["dy"]);
  return call["dy"].dtype != DType::F64 && sums.parts() * sums.outputs() <= INT32_MAX;
}

// Epilogues of 16-bit operands whose rows begin at 16-byte borders.
bool takes_epilogues(const OpCall& call, size_t matrices) {
  for (size_t i = 0; i < matrices; ++i)
    if (call.operand(i).shape.back() % 8 != 0) return false;
  return is_16_bit_float(call.operand(0).dtype);
}

bool accepts_bgrad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return results.size() == 2 && accepts_matmul<2>(call, results) && takes_epilogues(call, 2);
}

bool accepts_gelu_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_matmul<3>(call, results) && call["dy"].dtype != DType::F64;
}

// The library knows gelu's tanh form alone.
bool accepts_dgelu(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_matmul<3>(call, results) && takes_epilogues(call, 3) && is_tanh_form(call);
}

// Matrix units read rows of 8-bit floats from 16-byte borders on; the library adds a bias of 16 bits alone.
bool accepts_linear_f8(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr int64_t multiple = 16;
  const Type &x = call["x"], &w = call["w"];
  if (results[0].elements() == 0 || x.elements() == 0) return false;
  if (call.has("bias") && results[0].dtype == DType::F32) return false;
  return rows_of(x) % multiple == 0 && w.shape[0] % multiple == 0 && w.shape[1] % multiple == 0;
}

int64_t matmul_workspace(const OpCall&, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  return device.product_workspace_bytes;
}

int64_t weight_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  const int64_t sums =
      results.size() == 1 ? 0 : bias_sums(call["dy"]).workspace() * static_cast<int64_t>(sizeof(float));
  return std::max(device.product_workspace_bytes, sums);
}

constexpr CudaCandidate cublaslt(const OpDef& op, llvm::StringLiteral name, int algorithms,
                                 CudaCandidate::AcceptsFn accepts,
                                 CudaCandidate::WorkspaceFn workspace = matmul_workspace) {
  return {.op = op, .name = name, .accepts = accepts, .workspace_bytes = workspace, .algorithms = algorithms};
}

constexpr CudaCandidate candidates[] = {
    cublaslt(op_matmul, "cublaslt", 4, accepts_matmul<2>),
    cublaslt(op_linear, "cublaslt", 4, accepts_matmul<3>),
    cublaslt(op_linear_gelu_grad, "cublaslt_dgelu", 2, accepts_dgelu),
    cublaslt(op_linear_gelu_grad, "cublaslt", 1, accepts_gelu_grad),
    cublaslt(op_linear_f8, "cublaslt", 4, accepts_linear_f8),
    cublaslt(op_linear_dw, "cublaslt", 4, accepts_weight_gradient, weight_gradient_workspace),
    cublaslt(op_linear_dw, "cublaslt_bgrad", 2, accepts_bgrad),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> matmul_candidates() { return candidates; }

}  // namespace plimsoll
