#include "runtime/kernels/loss.h"
#include "kernels/cpu/loss/cross_entropy.h"
#include "runtime/cpu/kernels.h"

namespace plimsoll {
namespace {

// [outer, classes, inner]
AxisShape logits_of(const OpCall& call) { return split_axis(call["logits"].shape, 1); }

cpu::CrossEntropyOptions options_of(const CpuCall& k) {
  return {.class_weights = k.in<float>("class_weights"),
          .smoothing = static_cast<float>(k.call.get_float("label_smoothing")),
          .ignores = k.attrs().has("ignore_index"),
          .ignore_index = k.attrs().get_int("ignore_index")};
}

bool accepts_cross_entropy(const OpCall& call, llvm::ArrayRef<Type> results) {
  return floats_are_f32(call, results) && !call.attrs.has("classes") && is_label(call["labels"].dtype);
}

// One loss per row, in double.
int64_t cross_entropy_workspace(const OpCall& call, llvm::ArrayRef<Type>) {
  return call["labels"].elements() * static_cast<int64_t>(sizeof(double));
}

template <typename Label>
Status bad_label(const CpuCall& k, int64_t row) {
  return model_error("label " + llvm::Twine(static_cast<int64_t>(k.in<Label>("labels")[row])) + " at position " +
                     llvm::Twine(row) + " names none of the " + llvm::Twine(logits_of(k.call).length) + " classes");
}

void store_loss(const CpuCall& k, const double* losses, double weight) {
  *k.out<float>("weight") = static_cast<float>(weight);
  auto* loss = k.out<float>("loss");
  const int64_t rows = logits_of(k.call).rows();
  if (reduction_of(k.call) == LossReduction::None) {
    for (int64_t r = 0; r < rows; ++r) loss[r] = static_cast<float>(losses[r]);
    return;
  }
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) sum += losses[r];
  *loss = static_cast<float>(reduction_of(k.call) == LossReduction::Mean ? sum / weight : sum);
}

template <typename Label>
Status cross_entropy(const CpuCall& k) {
  auto* losses = k.scratch<double>();
  int64_t bad_row;
  const double weight = cpu::cross_entropy_rows(logits_of(k.call), options_of(k), k.in<float>("logits"),
                                                k.in<Label>("labels"), losses, k.out<float>("lse"), &bad_row);
  if (bad_row >= 0) return bad_label<Label>(k, bad_row);
  store_loss(k, losses, weight);
  return Status::success();
}

Status launch_cross_entropy(const CpuCall& k) {
  return k.call["labels"].dtype == DType::I64 ? cross_entropy<int64_t>(k) : cross_entropy<int32_t>(k);
}

cpu::LossGradient gradient_of(const CpuCall& k, double divisor) {
  const int64_t dloss_step = reduction_of(k.call) == LossReduction::None ? 1 : 0;
  return {k.in<float>("dloss"), dloss_step, divisor, k.in<float>("dlse")};
}

template <typename Label>
void cross_entropy_grad(const CpuCall& k) {
  const double divisor = reduction_of(k.call) == LossReduction::Mean ? *k.in<float>("weight") : 1.0;
  cpu::cross_entropy_grad(logits_of(k.call), options_of(k), k.out<float>("dlogits"), k.in<float>("logits"),
                          k.in<Label>("labels"), k.in<float>("lse"), gradient_of(k, divisor));
}

Status launch_cross_entropy_grad(const CpuCall& k) {
  k.call["labels"].dtype == DType::I64 ? cross_entropy_grad<int64_t>(k) : cross_entropy_grad<int32_t>(k);
  return Status::success();
}

template <typename Label>
Status cross_entropy_with_grad(const CpuCall& k) {
  auto* losses = k.scratch<double>();
  int64_t bad_row;
  const double weight = cpu::cross_entropy_with_grad(
      logits_of(k.call), options_of(k), k.out<float>("dlogits"), k.in<float>("logits"), k.in<Label>("labels"), losses,
      k.out<float>("lse"), gradient_of(k, 1.0), reduction_of(k.call) == LossReduction::Mean, &bad_row);
  if (bad_row >= 0) return bad_label<Label>(k, bad_row);
  store_loss(k, losses, weight);
  return Status::success();
}

Status launch_cross_entropy_with_grad(const CpuCall& k) {
  return k.call["labels"].dtype == DType::I64 ? cross_entropy_with_grad<int64_t>(k)
                                              : cross_entropy_with_grad<int32_t>(k);
}

constexpr CpuKernel loss_table[] = {
    {op_cross_entropy, "rows", accepts_cross_entropy, launch_cross_entropy, cross_entropy_workspace},
    {op_cross_entropy_grad, "rows", accepts_cross_entropy, launch_cross_entropy_grad},
    {op_cross_entropy_with_grad, "rows", accepts_cross_entropy, launch_cross_entropy_with_grad,
     cross_entropy_workspace},
};

}  // namespace

llvm::ArrayRef<CpuKernel> loss_kernels() { return loss_table; }

}  // namespace plimsoll
