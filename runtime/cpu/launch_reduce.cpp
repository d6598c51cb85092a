#include "kernels/cpu/reduce/reduce.h"
#include "kernels/cpu/reduce/softmax.h"
#include "runtime/cpu/kernels_families.h"

// Reductions over axes, the sum of squares, and the softmax family.

#include <numeric>

namespace plimsoll {
namespace {

template <cpu::Reduction kind>
Status launch_reduction(const KernelCall& k) {
  const Shape& x = k.call.operand(0).shape;
  cpu::ReductionShape shape;
  shape.rank = static_cast<int>(x.size());
  for (size_t d = 0; d < x.size(); ++d) {
    shape.sizes[d] = x[d];
    shape.reduced[d] = false;
  }
  for (int64_t axis : k.call.attrs.get_ints("axes")) shape.reduced[axis] = true;
  cpu::reduce(kind, shape, k.out<float>(0), k.in<float>(0));
  return Status::success();
}

int64_t sum_squares_workspace(const OpCall& call, llvm::ArrayRef<Type>) {
  int64_t partials = 0;
  for (size_t i = 0; i < call.count(); ++i) partials += cpu::sum_squares_partials(call.operand(i).elements());
  return partials * static_cast<int64_t>(sizeof(double));
}

Status launch_sum_squares(const KernelCall& k) {
  auto* const partials = static_cast<double*>(k.workspace);
  double* end = partials;
  for (const TensorView& x : k.operands) end = cpu::partial_sums_of_squares(end, x.as<float>(), x.elements());
  *k.out<float>(0) = static_cast<float>(std::accumulate(partials, end, 0.0));
  return Status::success();
}

cpu::SoftmaxShape softmax_shape(const KernelCall& k) {
  const AxisSplit split(k.results[0].type.shape, k.call.attrs.get_int("axis"));
  return {split.outer, split.length, split.inner};
}

template <cpu::SoftmaxKind kind>
Status launch_softmax(const KernelCall& k) {
  cpu::softmax(kind, softmax_shape(k), k.out<float>(0), k.in<float>(0));
  return Status::success();
}

template <cpu::SoftmaxKind kind>
Status launch_softmax_grad(const KernelCall& k) {
  cpu::softmax_grad(kind, softmax_shape(k), k.out<float>(0), k.in<float>(0), k.in<float>(1));
  return Status::success();
}

constexpr CpuKernel kernels[] = {
    {"reduce_sum", "vectorised", all_f32, launch_reduction<cpu::Reduction::Sum>},
    {"reduce_mean", "vectorised", all_f32, launch_reduction<cpu::Reduction::Mean>},
    {"reduce_max", "vectorised", all_f32, launch_reduction<cpu::Reduction::Max>},
    {"reduce_min", "vectorised", all_f32, launch_reduction<cpu::Reduction::Min>},
    {"reduce_prod", "vectorised", all_f32, launch_reduction<cpu::Reduction::Product>},
    {"sum_squares", "vectorised", all_f32, launch_sum_squares, sum_squares_workspace},
    {"softmax", "rows", all_f32, launch_softmax<cpu::SoftmaxKind::Plain>},
    {"softmax_grad", "rows", all_f32, launch_softmax_grad<cpu::SoftmaxKind::Plain>},
    {"log_softmax", "rows", all_f32, launch_softmax<cpu::SoftmaxKind::Log>},
    {"log_softmax_grad", "rows", all_f32, launch_softmax_grad<cpu::SoftmaxKind::Log>},
};

}  // namespace

llvm::ArrayRef<CpuKernel> reduce_kernels() { return kernels; }

}  // namespace plimsoll
