#include "runtime/kernels/update.h"
#include "ir/ops/update/update_block.h"
#include "kernels/cpu/move/move.h"
#include "kernels/cpu/norm/channel_norm.h"
#include "kernels/cpu/update/optimizer.h"
#include "runtime/cpu/kernels.h"

namespace plimsoll {
namespace {

float scalar_or(const CpuCall& k, size_t i, float otherwise) { return k.has(i) ? *k.in<float>(i) : otherwise; }

// The update is called off: results are the operands they replace.
bool skips(const CpuCall& k, size_t i) { return k.has(i) && *k.in<bool>(i); }

void keep(const CpuCall& k, size_t result, size_t operand) {
  if (k.results[result].data != k.operands[operand].data)
    cpu::copy_bytes(k.results[result].data, k.operands[operand].data, k.results[result].type.bytes());
}

static_assert(cpu::norm_block == update_block);

// Null: not asked for.
float* norms_of(const CpuCall& k) {
  return k.attrs().get_int("norms") ? static_cast<float*>(k.results.back().data) : nullptr;
}

// The norms of a gradient that is not applied.
void give_norms(const CpuCall& k) {
  if (float* norms = norms_of(k)) cpu::gradient_norms(norms, k.in<float>(1), k.elements());
}

Status launch_adamw(const CpuCall& k) {
  const Attrs& attrs = k.attrs();
  const cpu::AdamOptions options{.beta1 = attrs.get_float("beta1"),
                                 .beta2 = attrs.get_float("beta2"),
                                 .eps = attrs.get_float("eps"),
                                 .weight_decay = attrs.get_float("weight_decay"),
                                 .decoupled = attrs.get_int("decoupled", 1) != 0};
  if (skips(k, 7)) {
    for (auto [result, operand] : {std::pair{0, 0}, {1, 2}, {2, 3}}) keep(k, result, operand);
    give_norms(k);
    return Status::success();
  }
  cpu::adam(options, k.out<float>(0), k.out<float>(1), k.out<float>(2), k.in<float>(0), k.in<float>(1), k.in<float>(2),
            k.in<float>(3), *k.in<int64_t>(4), *k.in<float>(5), scalar_or(k, 6, 1), k.elements(), norms_of(k));
  return Status::success();
}

Status launch_sgd(const CpuCall& k) {
  const Attrs& attrs = k.attrs();
  const cpu::SgdOptions options{.momentum = static_cast<float>(attrs.get_float("momentum")),
                                .dampening = static_cast<float>(attrs.get_float("dampening")),
                                .weight_decay = static_cast<float>(attrs.get_float("weight_decay")),
                                .nesterov = attrs.get_int("nesterov") != 0};
  if (skips(k, 5)) {
    keep(k, 0, 0);
    if (k.has(3)) keep(k, 1, 3);
    give_norms(k);
    return Status::success();
  }
  cpu::sgd(options, k.out<float>(0), k.has(3) ? k.out<float>(1) : nullptr, k.in<float>(0), k.in<float>(1),
           k.in<float>(3), *k.in<float>(2), scalar_or(k, 4, 1), k.elements(), norms_of(k));
  return Status::success();
}

Status launch_running_update(const CpuCall& k) {
  cpu::running_update(k.attrs().get_float("momentum"), running_share(k.attrs()), k.out<float>(0), k.in<float>(0),
                      k.in<float>(1), k.elements());
  return Status::success();
}

constexpr CpuKernel kernels[] = {
    {op_adamw, "fused", floats_are_f32, launch_adamw},
    {op_sgd, "fused", floats_are_f32, launch_sgd},
    {op_running_update, "channels", all_f32, launch_running_update},
};

}  // namespace

llvm::ArrayRef<CpuKernel> update_kernels() { return kernels; }

}  // namespace plimsoll
