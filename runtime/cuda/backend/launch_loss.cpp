#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/reduce/softmax.h"
#include "runtime/cuda/backend/launched.h"
#include "runtime/kernels/loop_nests.h"

namespace plimsoll {
namespace {

cuda::ClassScores scores_of(const Type& scores, const Attrs& attrs) {
  const AxisSplit view(scores.shape, 1);
  return {view.outer, attrs.get_int("classes", view.length), view.inner, CudaCall::scalar_of(scores.dtype),
          view.length};
}

cuda::LossReduction reduction_of(const CudaCall& k) {
  const llvm::StringRef reduction = k.call.attrs.get_string("reduction", "mean");
  if (reduction == "none") return cuda::LossReduction::None;
  return reduction == "sum" ? cuda::LossReduction::Sum : cuda::LossReduction::Mean;
}

// Labels and class weights are these operands.
cuda::ClassLabels labels_of(const CudaCall& k, size_t labels, size_t weights) {
  const Attrs& attrs = k.call.attrs;
  return {.labels = k.in(labels),
          .type = k.in_scalar(labels),
          .weights = k.in<float>(weights),
          .ignores = attrs.has("ignore_index"),
          .ignore_index = attrs.get_int("ignore_index"),
          .reduction = reduction_of(k),
          .smoothing = static_cast<float>(attrs.get_float("label_smoothing"))};
}

Status launch_cross_entropy(const CudaCall& k) {
  return launched(
      k, cuda::cross_entropy(scores_of(k.call.operand(0), k.call.attrs), labels_of(k, 1, 2), k.out<float>(0),
                             k.out<float>(1), k.out<float>(2), k.in(0), static_cast<float*>(k.workspace), k.stream));
}

Status launch_cross_entropy_grad(const CudaCall& k) {
  return launched(k, cuda::cross_entropy_grad(scores_of(k.call.operand(0), k.call.attrs), labels_of(k, 1, 5), k.out(0),
                                              k.in(0), k.in<float>(2), k.in<float>(3), k.in<float>(4), k.stream));
}

Status launch_nll_loss(const CudaCall& k) {
  return launched(k, cuda::nll_loss(scores_of(k.call.operand(0), k.call.attrs), labels_of(k, 1, 2), k.out<float>(0),
                                    k.out<float>(1), k.in(0), static_cast<float*>(k.workspace), k.stream));
}

Status launch_nll_loss_grad(const CudaCall& k) {
  return launched(k, cuda::nll_loss_grad(scores_of(k.results[0].type, k.call.attrs), labels_of(k, 0, 3), k.out(0),
                                         k.in<float>(1), k.in<float>(2), k.stream));
}

cuda::SoftmaxShape rows_of(const CudaCall& k) {
  const AxisSplit view(k.call.operand(0).shape, k.call.attrs.get_int("axis"));
  return {view.outer, view.length, view.inner};
}

template <cuda::SoftmaxKind kind>
Status launch_softmax(const CudaCall& k) {
  return launched(k, cuda::softmax(kind, rows_of(k), k.in_scalar(0), k.out(0), k.in(0), k.stream));
}

template <cuda::SoftmaxKind kind>
Status launch_softmax_grad(const CudaCall& k) {
  return launched(k, cuda::softmax_grad(kind, rows_of(k), k.in_scalar(0), k.out(0), k.in(0), k.in(1), k.stream));
}

Status launch_hardmax(const CudaCall& k) {
  return launched(k, cuda::hardmax(rows_of(k), k.in_scalar(0), k.out(0), k.in(0), k.stream));
}

constexpr CudaLauncher launchers[] = {
    {"cross_entropy", "rows", launch_cross_entropy},
    {"cross_entropy_grad", "rows", launch_cross_entropy_grad},
    {"nll_loss", "rows", launch_nll_loss},
    {"nll_loss_grad", "elements", launch_nll_loss_grad},
    {"softmax", "rows", launch_softmax<cuda::SoftmaxKind::Plain>},
    {"softmax_grad", "rows", launch_softmax_grad<cuda::SoftmaxKind::Plain>},
    {"log_softmax", "rows", launch_softmax<cuda::SoftmaxKind::Log>},
    {"log_softmax_grad", "rows", launch_softmax_grad<cuda::SoftmaxKind::Log>},
    {"hardmax", "rows", launch_hardmax},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_loss_launchers() { return launchers; }

}  // namespace plimsoll
