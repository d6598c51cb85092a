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
Status cross_entropy(const CpuCall& k) {
  const AxisShape shape = logits_of(k.call);
  auto* losses = k.scratch<double>();
  int64_t bad_row;
  const double weight = cpu::cross_entropy_rows(shape, options_of(k), k.in<float>("logits"), k.in<Label>("labels"),
                                                losses, k.out<float>("lse"), &bad_row);
  if (bad_row >= 0)
    return model_error("label " + llvm::Twine(static_cast<int64_t>(k.in<Label>("labels")[bad_row])) + " at position " +
                       llvm::Twine(bad_row) + " names none of the " + llvm::Twine(shape.length) + " classes");
  *k.out<float>("weight") = static_cast<float>(weight);
  auto* loss = k.out<float>("loss");
  if (reduction_of(k.call) == LossReduction::None) {
    for (int64_t r = 0; r < shape.rows(); ++r) loss[r] = static_cast<float>(losses[r]);
    return Status::success();
  }
  double sum = 0;
  for (int64_t r = 0; r < shape.rows(); ++r) sum += losses[r];
  *loss = static_cast<float>(reduction_of(k.call) == LossReduction::Mean ? sum / weight : sum);
  return Status::success();
}

Status launch_cross_entropy(const CpuCall& k) {
  return k.call["labels"].dtype == DType::I64 ? cross_entropy<int64_t>(k) : cross_entropy<int32_t>(k);
}

template <typename Label>
void cross_entropy_grad(const CpuCall& k) {
  const double divisor = reduction_of(k.call) == LossReduction::Mean ? *k.in<float>("weight") : 1.0;
  const int64_t dloss_step = reduction_of(k.call) == LossReduction::None ? 1 : 0;
  cpu::cross_entropy_grad(logits_of(k.call), options_of(k), k.out<float>("dlogits"), k.in<float>("logits"),
                          k.in<Label>("labels"), k.in<float>("lse"), k.in<float>("dloss"), dloss_step, divisor,
                          k.in<float>("dlse"));
}

Status launch_cross_entropy_grad(const CpuCall& k) {
  k.call["labels"].dtype == DType::I64 ? cross_entropy_grad<int64_t>(k) : cross_entropy_grad<int32_t>(k);
  return Status::success();
}

constexpr CpuKernel kernels[] = {
    {op_cross_entropy, "rows", accepts_cross_entropy, launch_cross_entropy, cross_entropy_workspace},
    {op_cross_entropy_grad, "rows", accepts_cross_entropy, launch_cross_entropy_grad},
};

}  // namespace

llvm::ArrayRef<CpuKernel> loss_kernels() { return kernels; }

}  // namespace plimsoll
