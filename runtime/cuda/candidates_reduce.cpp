#include "runtime/cuda/float_types.h"
#include "runtime/cuda/reduction_shape.h"

namespace plimsoll {
namespace {

// Blocks are numbered in 31 bits.
bool accepts_reduction(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType x = call.operand(0).dtype;
  const std::optional<cuda::AlternatingShape> shape = reduction_shape(call);
  if (!shape || !computes_in_f32(x) || !computes_in_f32(results[0].dtype)) return false;
  const cuda::ReductionPlan plan(*shape, dtype_bytes(x));
  return plan.parts() * plan.outputs() <= INT32_MAX;
}

int64_t reduction_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  const cuda::ReductionPlan plan(*reduction_shape(call), dtype_bytes(call.operand(0).dtype));
  return plan.workspace() * static_cast<int64_t>(sizeof(float));
}

bool accepts_squares(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType x = call.operand(0).dtype;
  for (size_t i = 1; i < call.count(); ++i)
    if (call.operand(i).dtype != x) return false;
  return computes_in_f32(x) && results[0].dtype == DType::F32;
}

int64_t squares_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  int64_t total = 0, parts = 0;
  for (size_t i = 0; i < call.count(); ++i) total += call.operand(i).elements();
  const int64_t block = cuda::squares_block(total);
  for (size_t i = 0; i < call.count(); ++i) parts += cuda::squares_parts(call.operand(i).elements(), block);
  return parts * static_cast<int64_t>(sizeof(float));
}

constexpr CudaCandidate candidates[] = {
    {"reduce_sum", "two_stages", accepts_reduction, reduction_workspace},
    {"reduce_mean", "two_stages", accepts_reduction, reduction_workspace},
    {"reduce_max", "two_stages", accepts_reduction, reduction_workspace},
    {"reduce_min", "two_stages", accepts_reduction, reduction_workspace},
    {"reduce_prod", "two_stages", accepts_reduction, reduction_workspace},
    {"sum_squares", "two_stages", accepts_squares, squares_workspace},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_reduce_candidates() { return candidates; }

}  // namespace plimsoll
