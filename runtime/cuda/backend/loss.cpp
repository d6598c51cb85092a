#include "kernels/cuda/loss/loss.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/loss.h"

namespace plimsoll {
namespace {

static_assert(static_cast<cuda::LossReduction>(LossReduction::Mean) == cuda::LossReduction::Mean &&
              static_cast<cuda::LossReduction>(LossReduction::Sum) == cuda::LossReduction::Sum &&
              static_cast<cuda::LossReduction>(LossReduction::None) == cuda::LossReduction::None);

cuda::ClassScores scores_of(const Type& scores, const Attrs& attrs) {
  const AxisSplit view(scores.shape, 1);
  return {view.outer, attrs.get_int("classes", view.length), view.inner, CudaCall::scalar_of(scores.dtype),
          view.length};
}

// Labels and class weights are these operands.
cuda::ClassLabels labels_of(const CudaCall& k, size_t labels, size_t weights) {
  const Attrs& attrs = k.attrs();
  return {.labels = k.in(labels),
          .type = k.in_scalar(labels),
          .weights = k.in<float>(weights),
          .ignores = attrs.has("ignore_index"),
          .ignore_index = attrs.get_int("ignore_index"),
          .reduction = static_cast<cuda::LossReduction>(reduction_of(attrs)),
          .smoothing = static_cast<float>(attrs.get_float("label_smoothing"))};
}

Status launch_cross_entropy(const CudaCall& k) {
  return launched(k, cuda::cross_entropy(scores_of(k.call.operand(0), k.attrs()), labels_of(k, 1, 2), k.out<float>(0),
                                         k.out<float>(1), k.out<float>(2), k.in(0), k.scratch<float>(), k.stream));
}

Status launch_cross_entropy_grad(const CudaCall& k) {
  return launched(k, cuda::cross_entropy_grad(scores_of(k.call.operand(0), k.attrs()), labels_of(k, 1, 5), k.out(0),
                                              k.in(0), k.in<float>(2), k.in<float>(3), k.in<float>(4), k.stream));
}

Status launch_nll_loss(const CudaCall& k) {
  return launched(k, cuda::nll_loss(scores_of(k.call.operand(0), k.attrs()), labels_of(k, 1, 2), k.out<float>(0),
                                    k.out<float>(1), k.in(0), k.scratch<float>(), k.stream));
}

Status launch_nll_loss_grad(const CudaCall& k) {
  return launched(k, cuda::nll_loss_grad(scores_of(k.results[0].type, k.attrs()), labels_of(k, 0, 3), k.out(0),
                                         k.in<float>(1), k.in<float>(2), k.stream));
}

constexpr CudaLauncher launchers[] = {
    {kernel::cross_entropy_rows, launch_cross_entropy},
    {kernel::cross_entropy_grad_rows, launch_cross_entropy_grad},
    {kernel::nll_loss_rows, launch_nll_loss},
    {kernel::nll_loss_grad_elements, launch_nll_loss_grad},
};
static_assert(launches_each(loss_candidates, launchers));

}  // namespace

llvm::ArrayRef<CudaLauncher> loss_launchers() { return launchers; }

}  // namespace plimsoll
