#include "kernels/cpu/norm/channel_norm.h"
#include "kernels/cpu/norm/norm.h"
#include "runtime/cpu/kernels_families.h"

namespace plimsoll {
namespace {

float eps_of(const KernelCall& k) { return static_cast<float>(k.call.attrs.get_float("eps")); }

// The tensor as rows that are normalised each by itself.
struct Rows {
  int64_t count, width;
  explicit Rows(const KernelCall& k) {
    const llvm::ArrayRef<int64_t> shape = k.call.operand(0).shape;
    const int64_t axis = k.call.attrs.get_int("axis");
    count = element_count(shape.take_front(axis));
    width = element_count(shape.drop_front(axis));
  }
};

Status launch_layer_norm(const KernelCall& k) {
  const Rows rows(k);
  cpu::layer_norm(k.out<float>(0), k.out<float>(1), k.out<float>(2), k.in<float>(0), k.in<float>(1), k.in<float>(2),
                  rows.count, rows.width, eps_of(k));
  return Status::success();
}

// Results after dx, in order: dscale and dbias, each only where the attributes ask for it.
struct ParameterGrads {
  float *dscale = nullptr, *dbias = nullptr;
  explicit ParameterGrads(const KernelCall& k) {
    size_t next = 1;
    if (k.call.attrs.get_int("has_scale")) dscale = k.out<float>(next++);
    if (k.call.attrs.get_int("has_bias")) dbias = k.out<float>(next++);
  }
};

Status launch_layer_norm_grad(const KernelCall& k) {
  const Rows rows(k);
  const ParameterGrads grads(k);
  cpu::layer_norm_grad(k.out<float>(0), grads.dscale, grads.dbias, k.in<float>(0), k.in<float>(1), k.in<float>(2),
                       k.in<float>(3), k.in<float>(4), k.in<float>(5), rows.count, rows.width);
  return Status::success();
}

Status launch_rms_norm(const KernelCall& k) {
  const Rows rows(k);
  cpu::rms_norm(k.out<float>(0), k.out<float>(1), k.in<float>(0), k.in<float>(1), rows.count, rows.width, eps_of(k));
  return Status::success();
}

Status launch_rms_norm_grad(const KernelCall& k) {
  const Rows rows(k);
  cpu::rms_norm_grad(k.out<float>(0), ParameterGrads(k).dscale, k.in<float>(0), k.in<float>(1), k.in<float>(2),
                     k.in<float>(3), k.in<float>(4), rows.count, rows.width);
  return Status::success();
}

// With channels last, statistics over the batch see every position as a sample of its own.
cpu::ChannelShape channels_of(const KernelCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.call.operand(0).shape;
  if (k.call.attrs.get_int("channels_last")) return {element_count(shape.drop_back()), shape.back(), 1};
  return {shape[0], shape[1], element_count(shape.drop_front(2))};
}

Status launch_batch_norm(const KernelCall& k) {
  cpu::batch_norm({.shape = channels_of(k),
                   .eps = eps_of(k),
                   .y = k.out<float>(0),
                   .mean = k.out<float>(1),
                   .var = k.out<float>(2),
                   .x = k.in<float>(0),
                   .scale = k.in<float>(1),
                   .bias = k.in<float>(2),
                   .residual = k.in<float>(3),
                   .relu = k.call.attrs.get_string("activation", "none") == "relu"});
  return Status::success();
}

Status launch_batch_norm_grad(const KernelCall& k) {
  cpu::batch_norm_grad({.shape = channels_of(k),
                        .eps = eps_of(k),
                        .dx = k.out<float>(0),
                        .dscale = k.out<float>(1),
                        .dbias = k.out<float>(2),
                        .x = k.in<float>(0),
                        .dy = k.in<float>(1),
                        .scale = k.in<float>(2),
                        .mean = k.in<float>(3),
                        .var = k.in<float>(4),
                        .bias = k.in<float>(5),
                        .y = k.in<float>(6),
                        .more_dy = k.in<float>(7),
                        .dresidual = k.call.has(6) ? k.out<float>(3) : nullptr});
  return Status::success();
}

Status launch_batch_norm_inference(const KernelCall& k) {
  cpu::batch_norm_inference(channels_of(k), eps_of(k), k.out<float>(0), k.in<float>(0), k.in<float>(1), k.in<float>(2),
                            k.in<float>(3), k.in<float>(4));
  return Status::success();
}

// The biased variance of `count` elements becomes the unbiased estimate.
Status launch_running_update(const KernelCall& k) {
  const double momentum = k.call.attrs.get_float("momentum");
  const auto count = static_cast<double>(k.call.attrs.get_int("count", 1));
  const double share = (1 - momentum) * (count > 1 ? count / (count - 1) : 1);
  cpu::running_update(momentum, share, k.out<float>(0), k.in<float>(0), k.in<float>(1), k.results[0].elements());
  return Status::success();
}

Status launch_group_norm(const KernelCall& k) {
  cpu::group_norm(channels_of(k), k.call.attrs.get_int("groups"), eps_of(k), k.out<float>(0), k.out<float>(1),
                  k.out<float>(2), k.in<float>(0), k.in<float>(1), k.in<float>(2));
  return Status::success();
}

Status launch_group_norm_grad(const KernelCall& k) {
  const ParameterGrads grads(k);
  cpu::group_norm_grad(channels_of(k), k.call.attrs.get_int("groups"), k.out<float>(0), grads.dscale, grads.dbias,
                       k.in<float>(0), k.in<float>(1), k.in<float>(2), k.in<float>(3), k.in<float>(4));
  return Status::success();
}

// A group's elements are neighbours.
bool accepts_group_norm(const OpCall& call, llvm::ArrayRef<Type> results) {
  return all_f32(call, results) && !call.attrs.get_int("channels_last");
}

bool accepts_affine_inference(const OpCall& call, llvm::ArrayRef<Type> results) {
  return all_f32(call, results) && call.has(1) && call.has(2);
}

constexpr CpuKernel kernels[] = {
    {"layer_norm", "rows", all_f32, launch_layer_norm},
    {"layer_norm_grad", "rows", all_f32, launch_layer_norm_grad},
    {"rms_norm", "rows", all_f32, launch_rms_norm},
    {"rms_norm_grad", "rows", all_f32, launch_rms_norm_grad},
    {"batch_norm", "channels", all_f32, launch_batch_norm},
    {"batch_norm_grad", "channels", all_f32, launch_batch_norm_grad},
    {"batch_norm_inference", "channels", accepts_affine_inference, launch_batch_norm_inference},
    {"running_update", "channels", all_f32, launch_running_update},
    {"group_norm", "groups", accepts_group_norm, launch_group_norm},
    {"group_norm_grad", "groups", accepts_group_norm, launch_group_norm_grad},
};

}  // namespace

llvm::ArrayRef<CpuKernel> norm_kernels() { return kernels; }

}  // namespace plimsoll
