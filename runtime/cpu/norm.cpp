#include "kernels/cpu/norm/norm.h"
#include "kernels/cpu/norm/channel_norm.h"
#include "runtime/cpu/kernels.h"
#include "runtime/kernels/norm.h"

namespace plimsoll {
namespace {

// With channels last, statistics over the batch see every position as a sample of its own.
cpu::ChannelShape channel_shape(const CpuCall& k) {
  const cuda::ChannelShape shape = channels_of(k.call);
  if (shape.channels_last) return {shape.per_channel(), shape.channels, 1};
  return {shape.batch, shape.channels, shape.inner};
}

Status launch_layer_norm(const CpuCall& k) {
  const NormRows rows(k.call);
  cpu::layer_norm(k.out<float>(0), k.out<float>(1), k.out<float>(2), k.in<float>(0), k.in<float>(1), k.in<float>(2),
                  rows.count, rows.width, eps_of(k.call));
  return Status::success();
}

Status launch_layer_norm_grad(const CpuCall& k) {
  const NormRows rows(k.call);
  const ParameterGrads grads(k);
  cpu::layer_norm_grad(k.out<float>(0), static_cast<float*>(grads.dscale), static_cast<float*>(grads.dbias),
                       k.in<float>(0), k.in<float>(1), k.in<float>(2), k.in<float>(3), k.in<float>(4), k.in<float>(5),
                       rows.count, rows.width);
  return Status::success();
}

Status launch_rms_norm(const CpuCall& k) {
  const NormRows rows(k.call);
  cpu::rms_norm(k.out<float>(0), k.out<float>(1), k.in<float>(0), k.in<float>(1), rows.count, rows.width,
                eps_of(k.call));
  return Status::success();
}

Status launch_rms_norm_grad(const CpuCall& k) {
  const NormRows rows(k.call);
  cpu::rms_norm_grad(k.out<float>(0), static_cast<float*>(ParameterGrads(k).dscale), k.in<float>(0), k.in<float>(1),
                     k.in<float>(2), k.in<float>(3), k.in<float>(4), rows.count, rows.width);
  return Status::success();
}

Status launch_batch_norm(const CpuCall& k) {
  cpu::batch_norm({.shape = channel_shape(k),
                   .eps = eps_of(k.call),
                   .y = k.out<float>(0),
                   .mean = k.out<float>(1),
                   .var = k.out<float>(2),
                   .x = k.in<float>(0),
                   .scale = k.in<float>(1),
                   .bias = k.in<float>(2),
                   .residual = k.in<float>(3),
                   .relu = k.attrs().get_string("activation", "none") == "relu"});
  return Status::success();
}

Status launch_batch_norm_grad(const CpuCall& k) {
  cpu::batch_norm_grad({.shape = channel_shape(k),
                        .eps = eps_of(k.call),
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

Status launch_batch_norm_inference(const CpuCall& k) {
  cpu::batch_norm_inference(channel_shape(k), eps_of(k.call), k.out<float>(0), k.in<float>(0), k.in<float>(1),
                            k.in<float>(2), k.in<float>(3), k.in<float>(4));
  return Status::success();
}

Status launch_group_norm(const CpuCall& k) {
  cpu::group_norm(channel_shape(k), k.attrs().get_int("groups"), eps_of(k.call), k.out<float>(0), k.out<float>(1),
                  k.out<float>(2), k.in<float>(0), k.in<float>(1), k.in<float>(2));
  return Status::success();
}

Status launch_group_norm_grad(const CpuCall& k) {
  const ParameterGrads grads(k);
  cpu::group_norm_grad(channel_shape(k), k.attrs().get_int("groups"), k.out<float>(0),
                       static_cast<float*>(grads.dscale), static_cast<float*>(grads.dbias), k.in<float>(0),
                       k.in<float>(1), k.in<float>(2), k.in<float>(3), k.in<float>(4));
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
    {op_layer_norm, "rows", all_f32, launch_layer_norm},
    {op_layer_norm_grad, "rows", all_f32, launch_layer_norm_grad},
    {op_rms_norm, "rows", all_f32, launch_rms_norm},
    {op_rms_norm_grad, "rows", all_f32, launch_rms_norm_grad},
    {op_batch_norm, "channels", all_f32, launch_batch_norm},
    {op_batch_norm_grad, "channels", all_f32, launch_batch_norm_grad},
    {op_batch_norm_inference, "channels", accepts_affine_inference, launch_batch_norm_inference},
    {op_group_norm, "groups", accepts_group_norm, launch_group_norm},
    {op_group_norm_grad, "groups", accepts_group_norm, launch_group_norm_grad},
};

}  // namespace

llvm::ArrayRef<CpuKernel> norm_kernels() { return kernels; }

}  // namespace plimsoll
