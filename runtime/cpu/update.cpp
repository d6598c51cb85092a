#include "runtime/kernels/update.h"
#include "ir/eight_bit_moments.h"
#include "ir/ops/update/update_block.h"
#include "ir/quantized_numbers.h"
#include "kernels/cpu/elementwise/cast.h"
#include "kernels/cpu/move/move.h"
#include "kernels/cpu/norm/channel_norm.h"
#include "kernels/cpu/update/optimizer.h"
#include "runtime/cpu/kernels.h"

namespace plimsoll {
namespace {

float gradient_scale(const CpuCall& k) { return k.has("scale") ? *k.in<float>("scale") : 1.0f; }

// The update is called off: results are the operands they replace.
bool skips(const CpuCall& k) { return k.has("skip") && *k.in<bool>("skip"); }

void keep(const CpuCall& k, llvm::StringRef name) {
  if (k.out(name) != k.in(name)) cpu::copy_bytes(k.out(name), k.in(name), k.result(name).type.bytes());
}

static_assert(cpu::norm_block == update_block);

// The norms of a gradient that is not applied.
void give_norms(const CpuCall& k) {
  if (auto* norms = k.out_if_given<float>("norms")) cpu::gradient_norms(norms, k.in<float>("grad"), k.elements());
}

// The 16-bit copy of the new parameter, where the call gives one.
void give_copy(const CpuCall& k) {
  if (k.call.gives("copy"))
    cpu::cast_elements(k.out("copy"), k.out_scalar("copy"), k.out("param"), Scalar::F32, k.elements());
}

bool accepts_with_copy(const OpCall& call, llvm::ArrayRef<Type> results) {
  return floats_are_f32(call, call.gives("copy") ? results.drop_back() : results);
}

cpu::AdamOptions adam_options_of(const CpuCall& k) {
  const OpCall& call = k.call;
  const AdamRounding rounding(call);
  return {.beta1 = call.get_float("beta1"),
          .beta2 = call.get_float("beta2"),
          .eps = call.get_float("eps"),
          .weight_decay = call.get_float("weight_decay"),
          .decoupled = call.get_int("decoupled") != 0,
          .rounds = rounding.id != 0,
          .stream = {0, static_cast<uint32_t>(*k.in<int64_t>("step")), rounding.id, rounding.first_block}};
}

Status launch_adamw(const CpuCall& k) {
  const cpu::AdamOptions options = adam_options_of(k);
  if (skips(k)) {
    for (llvm::StringRef name : {"param", "m", "v"}) keep(k, name);
    give_norms(k);
    give_copy(k);
    return Status::success();
  }
  cpu::adam(options, k.out<float>("param"), k.out<float>("m"), k.out<float>("v"), k.in<float>("param"),
            k.in<float>("grad"), k.in<float>("m"), k.in<float>("v"), *k.in<int64_t>("step"), *k.in<float>("lr"),
            gradient_scale(k), k.elements(), k.out_if_given<float>("norms"));
  give_copy(k);
  return Status::success();
}

static_assert(cpu::adam_block == moment_block);

cpu::EightBitMoment moment_of(const CpuCall& k, llvm::StringRef codes, bool is_signed) {
  return {k.out<uint8_t>(codes), k.in<uint8_t>(codes), dynamic_map(is_signed).data(),
          dynamic_thresholds(is_signed).data()};
}

Status launch_adamw_8bit(const CpuCall& k) {
  if (skips(k)) {
    for (llvm::StringRef name : {"param", "m", "v", "scales"}) keep(k, name);
    give_norms(k);
    return Status::success();
  }
  const cpu::EightBitMoments moments{moment_of(k, "m", true), moment_of(k, "v", false), k.out<float>("scales"),
                                     k.in<float>("scales"), min_moment_scale};
  cpu::adam_8bit(adam_options_of(k), k.out<float>("param"), k.in<float>("param"), k.in<float>("grad"), moments,
                 *k.in<int64_t>("step"), *k.in<float>("lr"), gradient_scale(k), k.elements(),
                 k.out_if_given<float>("norms"));
  return Status::success();
}

Status launch_sgd(const CpuCall& k) {
  const OpCall& call = k.call;
  const cpu::SgdOptions options{.momentum = static_cast<float>(call.get_float("momentum")),
                                .dampening = static_cast<float>(call.get_float("dampening")),
                                .weight_decay = static_cast<float>(call.get_float("weight_decay")),
                                .nesterov = call.get_int("nesterov") != 0};
  if (skips(k)) {
    keep(k, "param");
    if (k.has("momentum")) keep(k, "momentum");
    give_norms(k);
    give_copy(k);
    return Status::success();
  }
  cpu::sgd(options, k.out<float>("param"), k.out_if_given<float>("momentum"), k.in<float>("param"), k.in<float>("grad"),
           k.in<float>("momentum"), *k.in<float>("lr"), gradient_scale(k), k.elements(),
           k.out_if_given<float>("norms"));
  give_copy(k);
  return Status::success();
}

Status launch_running_update(const CpuCall& k) {
  cpu::running_update(k.call.get_float("momentum"), running_share(k.call), k.out<float>("running"),
                      k.in<float>("running"), k.in<float>("batch"), k.elements());
  return Status::success();
}

constexpr CpuKernel update_table[] = {
    {op_adamw, "fused", accepts_with_copy, launch_adamw},
    {op_adamw_8bit, "fused", floats_are_f32, launch_adamw_8bit},
    {op_sgd, "fused", accepts_with_copy, launch_sgd},
    {op_running_update, "channels", all_f32, launch_running_update},
};

}  // namespace

llvm::ArrayRef<CpuKernel> update_kernels() { return update_table; }

}  // namespace plimsoll
