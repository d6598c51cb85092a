#include "kernels/cuda/update/update.h"
#include "ir/eight_bit_moments.h"
#include "ir/ops/update/update_block.h"
#include "ir/quantized_numbers.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/update.h"

namespace plimsoll {
namespace {

static_assert(cuda::norm_block == update_block);

// F32 where there are no copies.
Scalar copy_type_of(const CudaCall& k) {
  return k.call.gives("copy") ? scalar_of(k.call.attrs.get_dtype("copy_dtype")) : Scalar::F32;
}

cuda::AdamCall adam_call_of(const CudaCall& k) {
  const OpCall& op = k.call;
  return {.param_type = k.in_scalar("param"),
          .grad_type = k.in_scalar("grad"),
          .moment_type = k.in_scalar("m"),
          .step = k.in<int64_t>("step"),
          .lr = k.in<float>("lr"),
          .scale = k.in<float>("scale"),
          .skip = k.in<bool>("skip"),
          .beta1 = op.get_float("beta1"),
          .beta2 = op.get_float("beta2"),
          .eps = op.get_float("eps"),
          .weight_decay = op.get_float("weight_decay"),
          .decoupled = op.get_int("decoupled") != 0};
}

cuda::Rounding rounding_of(const CudaCall& k) {
  const AdamRounding rounding(k.call);
  return {rounding.id, rounding.first_block};
}

Status launch_adamw(llvm::ArrayRef<CudaCall> calls) {
  llvm::SmallVector<cuda::AdamTensor, 8> tensors;
  for (const CudaCall& each : calls)
    tensors.push_back({.new_param = each.out("param"),
                       .new_m = each.out("m"),
                       .new_v = each.out("v"),
                       .param = each.in("param"),
                       .grad = each.in("grad"),
                       .m = each.in("m"),
                       .v = each.in("v"),
                       .norms = each.out_if_given<float>("norms"),
                       .copy = each.out_if_given("copy"),
                       .copy_type = copy_type_of(each),
                       .elements = each.elements(),
                       .rounding = rounding_of(each)});
  const CudaCall& k = calls.front();
  return launched(k, cuda::adam(adam_call_of(k), tensors.data(), static_cast<int>(tensors.size()), k.stream));
}

static_assert(cuda::eight_bit_block == moment_block);

Status launch_adamw_8bit(llvm::ArrayRef<CudaCall> calls) {
  cuda::DynamicMaps maps;
  llvm::copy(dynamic_map(true), maps.of_signed);
  llvm::copy(dynamic_map(false), maps.of_unsigned);
  llvm::SmallVector<cuda::Adam8Tensor, 8> tensors;
  for (const CudaCall& each : calls)
    tensors.push_back({.new_param = each.out("param"),
                       .new_m = each.out<uint8_t>("m"),
                       .new_v = each.out<uint8_t>("v"),
                       .new_scales = each.out<float>("scales"),
                       .param = each.in("param"),
                       .grad = each.in("grad"),
                       .m = each.in<uint8_t>("m"),
                       .v = each.in<uint8_t>("v"),
                       .scales = each.in<float>("scales"),
                       .norms = each.out_if_given<float>("norms"),
                       .elements = each.elements(),
                       .rounding = rounding_of(each)});
  const CudaCall& k = calls.front();
  return launched(k, cuda::adam_8bit(adam_call_of(k), maps, min_moment_scale, tensors.data(),
                                     static_cast<int>(tensors.size()), k.stream));
}

Status launch_sgd(llvm::ArrayRef<CudaCall> calls) {
  const CudaCall& k = calls.front();
  const OpCall& op = k.call;
  const cuda::SgdCall call{.param_type = k.in_scalar("param"),
                           .grad_type = k.in_scalar("grad"),
                           .lr = k.in<float>("lr"),
                           .scale = k.in<float>("scale"),
                           .skip = k.in<bool>("skip"),
                           .momentum_factor = static_cast<float>(op.get_float("momentum")),
                           .dampening = static_cast<float>(op.get_float("dampening")),
                           .weight_decay = static_cast<float>(op.get_float("weight_decay")),
                           .nesterov = op.get_int("nesterov") != 0};
  llvm::SmallVector<cuda::SgdTensor, 8> tensors;
  for (const CudaCall& each : calls)
    tensors.push_back({.new_param = each.out("param"),
                       .new_momentum = each.out_if_given("momentum"),
                       .param = each.in("param"),
                       .grad = each.in("grad"),
                       .momentum = each.in("momentum"),
                       .norms = each.out_if_given<float>("norms"),
                       .copy = each.out_if_given("copy"),
                       .copy_type = copy_type_of(each),
                       .elements = each.elements()});
  return launched(k, cuda::sgd(call, tensors.data(), static_cast<int>(tensors.size()), k.stream));
}

Status launch_running_update(llvm::ArrayRef<CudaCall> calls) {
  llvm::SmallVector<cuda::RunningTensor, 8> tensors;
  for (const CudaCall& each : calls) {
    tensors.push_back({.result = each.out<float>("running"),
                       .running = each.in<float>("running"),
                       .batch = each.in<float>("batch"),
                       .momentum = static_cast<float>(each.call.get_float("momentum")),
                       .share = static_cast<float>(running_share(each.call)),
                       .elements = each.elements()});
  }
  const CudaCall& k = calls.front();
  return launched(k, cuda::running_update(tensors.data(), static_cast<int>(tensors.size()), k.stream));
}

// What is said of a parameter alone may differ within a launch.
Attrs without_own(Attrs attrs) {
  for (llvm::StringRef name : {"rounding_id", "first_draw", "draws_per_rank", "draws_per_part", "copy_dtype"})
    attrs.erase(name);
  return attrs;
}

// The same update of another parameter, with the same scalars.
bool joins(const CudaCall& first, const CudaCall& next, std::initializer_list<llvm::StringRef> scalars) {
  if (!(without_own(first.call.attrs) == without_own(next.call.attrs)) || first.operands.size() != next.operands.size())
    return false;
  for (size_t i = 0; i < first.operands.size(); ++i)
    if (first.has(i) != next.has(i) || (first.has(i) && first.operands[i].type.dtype != next.operands[i].type.dtype))
      return false;
  return llvm::all_of(scalars, [&](llvm::StringRef scalar) { return first.in(scalar) == next.in(scalar); });
}
bool adamw_joins(const CudaCall& first, const CudaCall& next) {
  return joins(first, next, {"step", "lr", "scale", "skip"});
}
bool sgd_joins(const CudaCall& first, const CudaCall& next) { return joins(first, next, {"lr", "scale", "skip"}); }

// The kernel takes all of a running update for each tensor.
bool always_joins(const CudaCall&, const CudaCall&) { return true; }

template <Status (*launch_group)(llvm::ArrayRef<CudaCall>)>
Status launch_one(const CudaCall& k) {
  return launch_group(k);
}

constexpr CudaLauncher update_table[] = {
    {op_adamw, "fused", launch_one<launch_adamw>, nullptr, adamw_joins, launch_adamw},
    {op_adamw_8bit, "fused", launch_one<launch_adamw_8bit>, nullptr, adamw_joins, launch_adamw_8bit},
    {op_sgd, "fused", launch_one<launch_sgd>, nullptr, sgd_joins, launch_sgd},
    {op_running_update, "fused", launch_one<launch_running_update>, nullptr, always_joins, launch_running_update},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> update_launchers() { return update_table; }

}  // namespace plimsoll
