#include "kernels/cuda/reduce/reduce.h"
#include "kernels/cuda/reduce/softmax.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/reduce.h"

namespace plimsoll {
namespace {

template <cuda::Reduction reduction>
Status launch_reduction(const CudaCall& k) {
  return launched(k, cuda::reduce({.reduction = reduction,
                                   .shape = *reduction_shape(k.call),
                                   .x = k.in("x"),
                                   .y = k.out("y"),
                                   .x_type = k.in_scalar("x"),
                                   .y_type = k.out_scalar("y"),
                                   .workspace = k.scratch<float>()},
                                  k.stream));
}

Status launch_sum_squares(const CudaCall& k) {
  llvm::SmallVector<const void*, 64> x;
  llvm::SmallVector<int64_t, 64> elements;
  for (const TensorView& operand : k.operands) {
    x.push_back(operand.data);
    elements.push_back(operand.elements());
  }
  return launched(k, cuda::sum_squares({.x = x.data(),
                                        .elements = elements.data(),
                                        .count = static_cast<int>(x.size()),
                                        .x_type = k.in_scalar("xs"),
                                        .y = k.out<float>("y"),
                                        .workspace = k.scratch<float>()},
                                       k.stream));
}

cuda::SoftmaxShape rows_of(const CudaCall& k) {
  const AxisSplit view = softmax_axis(k.call);
  return {view.outer, view.length, view.inner};
}

template <cuda::SoftmaxKind kind>
Status launch_softmax(const CudaCall& k) {
  return launched(k, cuda::softmax(kind, rows_of(k), k.in_scalar("x"), k.out("y"), k.in("x"), k.stream));
}

template <cuda::SoftmaxKind kind>
Status launch_softmax_grad(const CudaCall& k) {
  return launched(k,
                  cuda::softmax_grad(kind, rows_of(k), k.in_scalar("y"), k.out("dx"), k.in("y"), k.in("dy"), k.stream));
}

Status launch_hardmax(const CudaCall& k) {
  return launched(k, cuda::hardmax(rows_of(k), k.in_scalar("x"), k.out("y"), k.in("x"), k.stream));
}

constexpr CudaLauncher launchers[] = {
    {kernel::reduce_sum_two_stages, launch_reduction<cuda::Reduction::Sum>},
    {kernel::reduce_mean_two_stages, launch_reduction<cuda::Reduction::Mean>},
    {kernel::reduce_max_two_stages, launch_reduction<cuda::Reduction::Max>},
    {kernel::reduce_min_two_stages, launch_reduction<cuda::Reduction::Min>},
    {kernel::reduce_prod_two_stages, launch_reduction<cuda::Reduction::Product>},
    {kernel::sum_squares_two_stages, launch_sum_squares},
    {kernel::softmax_rows, launch_softmax<cuda::SoftmaxKind::Plain>},
    {kernel::softmax_grad_rows, launch_softmax_grad<cuda::SoftmaxKind::Plain>},
    {kernel::log_softmax_rows, launch_softmax<cuda::SoftmaxKind::Log>},
    {kernel::log_softmax_grad_rows, launch_softmax_grad<cuda::SoftmaxKind::Log>},
    {kernel::hardmax_rows, launch_hardmax},
};
static_assert(launches_each(reduce_candidates, launchers));

}  // namespace

llvm::ArrayRef<CudaLauncher> reduce_launchers() { return launchers; }

}  // namespace plimsoll
