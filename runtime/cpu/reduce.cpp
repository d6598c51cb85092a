#include "kernels/cpu/reduce/reduce.h"
#include "kernels/cpu/reduce/softmax.h"
#include "runtime/cpu/kernels.h"
#include "runtime/kernels/reduce.h"

// Reductions over axes, the sum of squares, and the softmax family.

#include <numeric>

namespace plimsoll {
namespace {

template <cpu::Reduction kind>
Status launch_reduction(const CpuCall& k) {
  const llvm::ArrayRef<int64_t> x = k.in_shape("x");
  cpu::ReductionShape shape;
  shape.rank = static_cast<int>(x.size());
  for (size_t d = 0; d < x.size(); ++d) {
    shape.sizes[d] = x[d];
    shape.reduced[d] = false;
  }
  for (int64_t axis : k.attrs().get_ints("axes")) shape.reduced[axis] = true;
  cpu::reduce(kind, shape, k.out<float>("y"), k.in<float>("x"));
  return Status::success();
}

int64_t sum_squares_workspace(const OpCall& call, llvm::ArrayRef<Type>) {
  int64_t partials = 0;
  for (size_t i = 0; i < call.count(); ++i) partials += cpu::sum_squares_partials(call.operand(i).elements());
  return partials * static_cast<int64_t>(sizeof(double));
}

Status launch_sum_squares(const CpuCall& k) {
  auto* const partials = k.scratch<double>();
  double* end = partials;
  for (const TensorView& x : k.operands) end = cpu::partial_sums_of_squares(end, x.as<float>(), x.elements());
  *k.out<float>("y") = static_cast<float>(std::accumulate(partials, end, 0.0));
  return Status::success();
}

template <cpu::SoftmaxKind kind>
Status launch_softmax(const CpuCall& k) {
  cpu::softmax(kind, softmax_axis(k.call), k.out<float>("y"), k.in<float>("x"));
  return Status::success();
}

template <cpu::SoftmaxKind kind>
Status launch_softmax_grad(const CpuCall& k) {
  cpu::softmax_grad(kind, softmax_axis(k.call), k.out<float>("dx"), k.in<float>("y"), k.in<float>("dy"));
  return Status::success();
}

constexpr CpuKernel reduce_table[] = {
    {op_reduce_sum, "vectorised", all_f32, launch_reduction<cpu::Reduction::Sum>},
    {op_reduce_mean, "vectorised", all_f32, launch_reduction<cpu::Reduction::Mean>},
    {op_reduce_max, "vectorised", all_f32, launch_reduction<cpu::Reduction::Max>},
    {op_reduce_min, "vectorised", all_f32, launch_reduction<cpu::Reduction::Min>},
    {op_reduce_prod, "vectorised", all_f32, launch_reduction<cpu::Reduction::Product>},
    {op_sum_squares, "vectorised", all_f32, launch_sum_squares, sum_squares_workspace},
    {op_softmax, "rows", all_f32, launch_softmax<cpu::SoftmaxKind::Plain>},
    {op_softmax_grad, "rows", all_f32, launch_softmax_grad<cpu::SoftmaxKind::Plain>},
    {op_log_softmax, "rows", all_f32, launch_softmax<cpu::SoftmaxKind::Log>},
    {op_log_softmax_grad, "rows", all_f32, launch_softmax_grad<cpu::SoftmaxKind::Log>},
};

}  // namespace

llvm::ArrayRef<CpuKernel> reduce_kernels() { return reduce_table; }

}  // namespace plimsoll
