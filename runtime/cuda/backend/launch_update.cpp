#include "kernels/cuda/update.h"
#include "runtime/cuda/backend/launched.h"

namespace plimsoll {
namespace {

Status launch_adamw(const CudaCall& k) {
  const Attrs& attrs = k.call.attrs;
  const cuda::AdamCall call{.new_param = k.out(0),
                            .new_m = k.out(1),
                            .new_v = k.out(2),
                            .param = k.in(0),
                            .grad = k.in(1),
                            .m = k.in(2),
                            .v = k.in(3),
                            .param_type = k.in_scalar(0),
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
                            .decoupled = attrs.get_int("decoupled", 1) != 0,
                            .elements = k.results[0].elements()};
  return launched(k, cuda::adam(call, k.stream));
}

Status launch_sgd(const CudaCall& k) {
  const Attrs& attrs = k.call.attrs;
  const cuda::SgdCall call{.new_param = k.out(0),
                           .new_momentum = k.has(3) ? k.out(1) : nullptr,
                           .param = k.in(0),
                           .grad = k.in(1),
                           .momentum = k.in(3),
                           .param_type = k.in_scalar(0),
                           .grad_type = k.in_scalar(1),
                           .lr = k.in<float>(2),
                           .scale = k.in<float>(4),
                           .skip = k.in<bool>(5),
                           .momentum_factor = static_cast<float>(attrs.get_float("momentum")),
                           .dampening = static_cast<float>(attrs.get_float("dampening")),
                           .weight_decay = static_cast<float>(attrs.get_float("weight_decay")),
                           .nesterov = attrs.get_int("nesterov") != 0,
                           .elements = k.results[0].elements()};
  return launched(k, cuda::sgd(call, k.stream));
}

Status launch_running_update(const CudaCall& k) {
  const double momentum = k.call.attrs.get_float("momentum");
  const auto count = static_cast<double>(k.call.attrs.get_int("count", 1));
  // A biased variance over `count` elements becomes the unbiased estimate.
  const double share = (1 - momentum) * (count > 1 ? count / (count - 1) : 1);
  return launched(k, cuda::running_update(k.out<float>(0), k.in<float>(0), k.in<float>(1),
                                          static_cast<float>(momentum), static_cast<float>(share),
                                          k.results[0].elements(), k.stream));
}

constexpr CudaLauncher launchers[] = {
    {"adamw", "fused", launch_adamw},
    {"sgd", "fused", launch_sgd},
    {"running_update", "fused", launch_running_update},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_update_launchers() { return launchers; }

}  // namespace plimsoll
