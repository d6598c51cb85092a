#include "runtime/kernels/reduce.h"

#include "kernels/cuda/common/partials.h"

namespace plimsoll {

std::optional<cuda::AlternatingShape> reduction_shape(const OpCall& call) {
  cuda::AlternatingShape shape;
  const llvm::ArrayRef<int64_t> sizes = call["x"].shape, axes = call.get_ints("axes");
  const bool all = !call.attrs.has("axes");
  for (size_t d = 0; d < sizes.size(); ++d)
    if (!shape.add(sizes[d], all || llvm::is_contained(axes, static_cast<int64_t>(d)))) return std::nullopt;
  return shape;
}

cuda::AlternatingShape row_sums(const Type& dy) {
  cuda::AlternatingShape shape;
  shape.add(dy.elements() / dy.shape.back(), true);
  shape.add(dy.shape.back(), false);
  return shape;
}

namespace {

// Blocks are numbered in 31 bits.
bool accepts_reduction(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType x = call["x"].dtype;
  const std::optional<cuda::AlternatingShape> shape = reduction_shape(call);
  if (!shape || !computes_in_f32(x) || !computes_in_f32(results[0].dtype)) return false;
  const cuda::ReductionPlan plan(*shape, dtype_bytes(x));
  return plan.parts() * plan.outputs() <= INT32_MAX;
}

int64_t reduction_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  const cuda::ReductionPlan plan(*reduction_shape(call), dtype_bytes(call["x"].dtype));
  return plan.workspace() * static_cast<int64_t>(sizeof(float));
}

bool accepts_squares(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType x = call.operand(0).dtype;
  return computes_in_f32(x) && results[0].dtype == DType::F32 &&
         all_operands(call, [&](const Type& type) { return type.dtype == x; });
}

int64_t squares_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  int64_t total = 0, parts = 0;
  for (size_t i = 0; i < call.count(); ++i) total += call.operand(i).elements();
  const int64_t block = cuda::squares_block(total);
  for (size_t i = 0; i < call.count(); ++i) parts += cuda::squares_parts(call.operand(i).elements(), block);
  return parts * static_cast<int64_t>(sizeof(float));
}

constexpr CudaCandidate reduce_table[] = {
    {op_reduce_sum, "two_stages", accepts_reduction, reduction_workspace},
    {op_reduce_mean, "two_stages", accepts_reduction, reduction_workspace},
    {op_reduce_max, "two_stages", accepts_reduction, reduction_workspace},
    {op_reduce_min, "two_stages", accepts_reduction, reduction_workspace},
    {op_reduce_prod, "two_stages", accepts_reduction, reduction_workspace},
    {op_sum_squares, "two_stages", accepts_squares, squares_workspace},
    {op_softmax, "rows", one_float_type},
    {op_softmax_grad, "rows", one_float_type},
    {op_log_softmax, "rows", one_float_type},
    {op_log_softmax_grad, "rows", one_float_type},
    {op_hardmax, "rows", one_float_type},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> reduce_candidates() { return reduce_table; }

}  // namespace plimsoll
