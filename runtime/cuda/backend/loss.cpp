#include "kernels/cuda/loss/loss.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/loss.h"

namespace plimsoll {
namespace {

static_assert(static_cast<cuda::LossReduction>(LossReduction::Mean) == cuda::LossReduction::Mean &&
              static_cast<cuda::LossReduction>(LossReduction::Sum) == cuda::LossReduction::Sum &&
              static_cast<cuda::LossReduction>(LossReduction::None) == cuda::LossReduction::None);

cuda::ClassScores scores_of(const Type& scores, const CudaCall& k) {
  const AxisShape view = split_axis(scores.shape, 1);
  return {view.outer, k.attrs().get_int("classes", view.length), view.inner, scalar_of(scores.dtype), view.length};
}

cuda::ClassLabels labels_of(const CudaCall& k) {
  const Attrs& attrs = k.attrs();
  return {.labels = k.in("labels"),
          .type = k.in_scalar("labels"),
          .weights = k.in<float>("class_weights"),
          .ignores = attrs.has("ignore_index"),
          .ignore_index = attrs.get_int("ignore_index"),
          .reduction = static_cast<cuda::LossReduction>(reduction_of(k.call)),
          .smoothing = static_cast<float>(attrs.get_float("label_smoothing"))};
}

Status launch_cross_entropy(const CudaCall& k) {
  return launched(
      k, cuda::cross_entropy(scores_of(k.call["logits"], k), labels_of(k), k.out<float>("loss"), k.out<float>("lse"),
                             k.out<float>("weight"), k.in("logits"), k.scratch<float>(), k.stream));
}

Status launch_cross_entropy_grad(const CudaCall& k) {
  return launched(k, cuda::cross_entropy_grad(scores_of(k.call["logits"], k), labels_of(k), k.out("dlogits"),
                                              k.in("logits"), k.in<float>("lse"), k.in<float>("weight"),
                                              k.in<float>("dloss"), k.in<float>("dlse"), k.stream));
}

cuda::LossWithGradient loss_with_gradient(const CudaCall& k) {
  return {.scores = scores_of(k.call["logits"], k),
          .labels = labels_of(k),
          .dlogits = k.out("dlogits"),
          .loss = k.out<float>("loss"),
          .lse = k.out<float>("lse"),
          .weight = k.out<float>("weight"),
          .logits = k.in("logits"),
          .dloss = k.in<float>("dloss"),
          .dlse = k.in<float>("dlse"),
          .workspace = k.scratch<float>()};
}

Status launch_cross_entropy_with_grad(const CudaCall& k) {
  return launched(k, cuda::cross_entropy_with_grad(loss_with_gradient(k), k.stream));
}

Status launch_clusters(const CudaCall& k) {
  return launched(k, cuda::cross_entropy_in_clusters(loss_with_gradient(k), k.stream));
}

Status launch_nll_loss(const CudaCall& k) {
  return launched(k, cuda::nll_loss(scores_of(k.call["log_probs"], k), labels_of(k), k.out<float>("loss"),
                                    k.out<float>("weight"), k.in("log_probs"), k.scratch<float>(), k.stream));
}

Status launch_nll_loss_grad(const CudaCall& k) {
  return launched(k, cuda::nll_loss_grad(scores_of(k.result("dlog_probs").type, k), labels_of(k), k.out("dlog_probs"),
                                         k.in<float>("weight"), k.in<float>("dloss"), k.stream));
}

constexpr CudaLauncher loss_table[] = {
    {op_cross_entropy, "rows", launch_cross_entropy},
    {op_cross_entropy_grad, "rows", launch_cross_entropy_grad},
    {op_cross_entropy_with_grad, "clusters", launch_clusters},
    {op_cross_entropy_with_grad, "rows", launch_cross_entropy_with_grad},
    {op_nll_loss, "rows", launch_nll_loss},
    {op_nll_loss_grad, "elements", launch_nll_loss_grad},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> loss_launchers() { return loss_table; }

}  // namespace plimsoll
