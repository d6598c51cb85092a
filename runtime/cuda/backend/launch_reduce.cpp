#include "kernels/cuda/reduce/reduce.h"
#include "runtime/cuda/backend/launched.h"
#include "runtime/cuda/reduction_shape.h"

namespace plimsoll {
namespace {

template <cuda::Reduction reduction>
Status launch_reduction(const CudaCall& k) {
  return launched(k, cuda::reduce({.reduction = reduction,
                                   .shape = *reduction_shape(k.call),
                                   .x = k.in(0),
                                   .y = k.out(0),
                                   .x_type = k.in_scalar(0),
                                   .y_type = k.out_scalar(0),
                                   .workspace = static_cast<float*>(k.workspace)},
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
                                        .x_type = k.in_scalar(0),
                                        .y = k.out<float>(0),
                                        .workspace = static_cast<float*>(k.workspace)},
                                       k.stream));
}

constexpr CudaLauncher launchers[] = {
    {"reduce_sum", "two_stages", launch_reduction<cuda::Reduction::Sum>},
    {"reduce_mean", "two_stages", launch_reduction<cuda::Reduction::Mean>},
    {"reduce_max", "two_stages", launch_reduction<cuda::Reduction::Max>},
    {"reduce_min", "two_stages", launch_reduction<cuda::Reduction::Min>},
    {"reduce_prod", "two_stages", launch_reduction<cuda::Reduction::Product>},
    {"sum_squares", "two_stages", launch_sum_squares},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_reduce_launchers() { return launchers; }

}  // namespace plimsoll
