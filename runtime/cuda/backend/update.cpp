#include "kernels/cuda/update/update.h"
#include "ir/ops/update/update_block.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/update.h"

namespace plimsoll {
namespace {

static_assert(cuda::norm_block == update_block);

// Null: not asked for.
float* norms_of(const CudaCall& k) { return k.attrs().get_int("norms") ? k.out<float>(k.results.size() - 1) : nullptr; }

Status launch_adamw(llvm::ArrayRef<CudaCall> calls) {
  const CudaCall& k = calls.front();
  const Attrs& attrs = k.attrs();
  const cuda::AdamCall call{.param_type = k.in_scalar(0),
                            .grad_type = k.in_scalar(1),
                            .moment_type = k.in_scalar(2),
                            .step = k.in<int64_t>(4),
                            .lr = k.in<float>(5),
                            .scale = k.in<float>(6),
                            .skip = k.in<bool>(7),
                            .beta1 = attrs.get_float("beta1"),
                            .beta2 = attrs.get_float("beta2"),
                            .eps = attrs.get_float("eps"),
                            .weight_decay = attrs.get_float("weight_decay"),
                            .decoupled = attrs.get_int("decoupled", 1) != 0};
  llvm::SmallVector<cuda::AdamTensor, 8> tensors;
  for (const CudaCall& each : calls)
    tensors.push_back({.new_param = each.out(0),
                       .new_m = each.out(1),
                       .new_v = each.out(2),
                       .param = each.in(0),
                       .grad = each.in(1),
                       .m = each.in(2),
                       .v = each.in(3),
                       .norms = norms_of(each),
                       .elements = each.results[0].elements()});
  return launched(k, cuda::adam(call, tensors.data(), static_cast<int>(tensors.size()), k.stream));
}

Status launch_sgd(llvm::ArrayRef<CudaCall> calls) {
  const CudaCall& k = calls.front();
  const Attrs& attrs = k.attrs();
  const cuda::SgdCall call{.param_type = k.in_scalar(0),
                           .grad_type = k.in_scalar(1),
                           .lr = k.in<float>(2),
                           .scale = k.in<float>(4),
                           .skip = k.in<bool>(5),
                           .momentum_factor = static_cast<float>(attrs.get_float("momentum")),
                           .dampening = static_cast<float>(attrs.get_float("dampening")),
                           .weight_decay = static_cast<float>(attrs.get_float("weight_decay")),
                           .nesterov = attrs.get_int("nesterov") != 0};
  llvm::SmallVector<cuda::SgdTensor, 8> tensors;
  for (const CudaCall& each : calls)
    tensors.push_back({.new_param = each.out(0),
                       .new_momentum = each.has(3) ? each.out(1) : nullptr,
                       .param = each.in(0),
                       .grad = each.in(1),
                       .momentum = each.in(3),
                       .norms = norms_of(each),
                       .elements = each.results[0].elements()});
  return launched(k, cuda::sgd(call, tensors.data(), static_cast<int>(tensors.size()), k.stream));
}

Status launch_running_update(llvm::ArrayRef<CudaCall> calls) {
  llvm::SmallVector<cuda::RunningTensor, 8> tensors;
  for (const CudaCall& each : calls) {
    tensors.push_back({.result = each.out<float>(0),
                       .running = each.in<float>(0),
                       .batch = each.in<float>(1),
                       .momentum = static_cast<float>(each.call.attrs.get_float("momentum")),
                       .share = static_cast<float>(running_share(each.call.attrs)),
                       .elements = each.results[0].elements()});
  }
  const CudaCall& k = calls.front();
  return launched(k, cuda::running_update(tensors.data(), static_cast<int>(tensors.size()), k.stream));
}

// The same update of another parameter: with the scalars at those operands.
template <size_t... scalars>
bool joins(const CudaCall& first, const CudaCall& next) {
  if (!(first.call.attrs == next.call.attrs) || first.operands.size() != next.operands.size()) return false;
  for (size_t i = 0; i < first.operands.size(); ++i)
    if (first.has(i) != next.has(i) || (first.has(i) && first.operands[i].type.dtype != next.operands[i].type.dtype))
      return false;
  return ((first.in(scalars) == next.in(scalars)) && ...);
}

// The kernel takes all of a running update for each tensor.
bool always_joins(const CudaCall&, const CudaCall&) { return true; }

template <Status (*launch_group)(llvm::ArrayRef<CudaCall>)>
Status launch_one(const CudaCall& k) {
  return launch_group(k);
}

constexpr CudaLauncher launchers[] = {
    {kernel::adamw_fused, launch_one<launch_adamw>, nullptr, joins<4, 5, 6, 7>, launch_adamw},
    {kernel::sgd_fused, launch_one<launch_sgd>, nullptr, joins<2, 4, 5>, launch_sgd},
    {kernel::running_update_fused, launch_one<launch_running_update>, nullptr, always_joins, launch_running_update},
};
static_assert(launches_each(update_candidates, launchers));

}  // namespace

llvm::ArrayRef<CudaLauncher> update_launchers() { return launchers; }

}  // namespace plimsoll
