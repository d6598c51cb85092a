#include "kernels/cuda/reduce/reduce.h"
#include "kernels/cuda/reduce/softmax.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/reduce.h"

namespace plimsoll {
namespace {

template <cuda::Reduction reduction>
cuda::ReduceCall reduction_of(const CudaCall& k) {
  return {.reduction = reduction,
          .shape = *reduction_shape(k.call),
          .x = k.in("x"),
          .y = k.out("y"),
          .x_type = k.in_scalar("x"),
          .y_type = k.out_scalar("y"),
          .workspace = k.scratch<float>()};
}

template <cuda::Reduction reduction>
Status launch_reduction(const CudaCall& k) {
  return launched(k, cuda::reduce(reduction_of<reduction>(k), k.stream));
}

template <cuda::Reduction reduction>
Status launch_integers(const CudaCall& k) {
  return launched(k, cuda::reduce_integers(reduction_of<reduction>(k), k.stream));
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

template <cuda::SoftmaxKind kind>
Status launch_softmax(const CudaCall& k) {
  return launched(k, cuda::softmax(kind, softmax_axis(k.call), k.in_scalar("x"), k.out("y"), k.in("x"), k.stream));
}

template <cuda::SoftmaxKind kind>
Status launch_softmax_grad(const CudaCall& k) {
  return launched(k, cuda::softmax_grad(kind, softmax_axis(k.call), k.in_scalar("y"), k.out("dx"), k.in("y"),
                                        k.in("dy"), k.stream));
}

Status launch_hardmax(const CudaCall& k) {
  return launched(k, cuda::hardmax(softmax_axis(k.call), k.in_scalar("x"), k.out("y"), k.in("x"), k.stream));
}

constexpr CudaLauncher reduce_table[] = {
    {op_reduce_sum, "two_stages", launch_reduction<cuda::Reduction::Sum>},
    {op_reduce_mean, "two_stages", launch_reduction<cuda::Reduction::Mean>},
    {op_reduce_max, "two_stages", launch_reduction<cuda::Reduction::Max>},
    {op_reduce_min, "two_stages", launch_reduction<cuda::Reduction::Min>},
    {op_reduce_prod, "two_stages", launch_reduction<cuda::Reduction::Product>},
    {op_reduce_sum, "integers", launch_integers<cuda::Reduction::Sum>},
    {op_reduce_max, "integers", launch_integers<cuda::Reduction::Max>},
    {op_reduce_min, "integers", launch_integers<cuda::Reduction::Min>},
    {op_sum_squares, "two_stages", launch_sum_squares},
    {op_softmax, "rows", launch_softmax<cuda::SoftmaxKind::Plain>},
    {op_softmax_grad, "rows", launch_softmax_grad<cuda::SoftmaxKind::Plain>},
    {op_log_softmax, "rows", launch_softmax<cuda::SoftmaxKind::Log>},
    {op_log_softmax_grad, "rows", launch_softmax_grad<cuda::SoftmaxKind::Log>},
    {op_hardmax, "rows", launch_hardmax},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> reduce_launchers() { return reduce_table; }

}  // namespace plimsoll
