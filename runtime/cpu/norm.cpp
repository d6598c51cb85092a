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
  cpu::row_norm(k.out<float>("y"), k.out<float>("mean"), k.out<float>("rstd"), k.in<float>("x"), k.in<float>("scale"),
                k.in<float>("bias"), rows.count, rows.width, eps_of(k.call));
  return Status::success();
}

Status launch_layer_norm_grad(const CpuCall& k) {
  const NormRows rows(k.call);
  cpu::row_norm_grad(k.out<float>("dx"), k.out_if_given<float>("dscale"), k.out_if_given<float>("dbias"),
                     k.in<float>("x"), k.in<float>("dy"), k.in<float>("mean"), k.in<float>("rstd"),
                     k.in<float>("scale"), k.in<float>("addend"), rows.count, rows.width);
  return Status::success();
}

Status launch_rms_norm(const CpuCall& k) {
  const NormRows rows(k.call);
  cpu::row_norm(k.out<float>("y"), nullptr, k.out<float>("rstd"), k.in<float>("x"), k.in<float>("scale"), nullptr,
                rows.count, rows.width, eps_of(k.call));
  return Status::success();
}

Status launch_rms_norm_grad(const CpuCall& k) {
  const NormRows rows(k.call);
  cpu::row_norm_grad(k.out<float>("dx"), k.out_if_given<float>("dscale"), nullptr, k.in<float>("x"), k.in<float>("dy"),
                     nullptr, k.in<float>("rstd"), k.in<float>("scale"), k.in<float>("addend"), rows.count, rows.width);
  return Status::success();
}

Status launch_batch_norm(const CpuCall& k) {
  cpu::batch_norm({.shape = channel_shape(k),
                   .eps = eps_of(k.call),
                   .y = k.out<float>("y"),
                   .mean = k.out<float>("mean"),
                   .var = k.out<float>("var"),
                   .x = k.in<float>("x"),
                   .scale = k.in<float>("scale"),
                   .bias = k.in<float>("bias"),
                   .residual = k.in<float>("residual"),
                   .relu = k.call.get_string("activation") == "relu"});
  return Status::success();
}

Status launch_batch_norm_grad(const CpuCall& k) {
  cpu::batch_norm_grad({.shape = channel_shape(k),
                        .eps = eps_of(k.call),
                        .dx = k.out<float>("dx"),
                        .dscale = k.out<float>("dscale"),
                        .dbias = k.out<float>("dbias"),
                        .x = k.in<float>("x"),
                        .dy = k.in<float>("dy"),
                        .scale = k.in<float>("scale"),
                        .mean = k.in<float>("mean"),
                        .var = k.in<float>("var"),
                        .bias = k.in<float>("bias"),
                        .y = k.in<float>("y"),
                        .more_dy = k.in<float>("more_dy"),
                        .dresidual = k.out_if_given<float>("dresidual")});
  return Status::success();
}

Status launch_batch_norm_inference(const CpuCall& k) {
  cpu::batch_norm_inference(channel_shape(k), eps_of(k.call), k.out<float>("y"), k.in<float>("x"), k.in<float>("scale"),
                            k.in<float>("bias"), k.in<float>("mean"), k.in<float>("var"));
  return Status::success();
}

Status launch_group_norm(const CpuCall& k) {
  cpu::group_norm(channel_shape(k), k.call.get_int("groups"), eps_of(k.call), k.out<float>("y"), k.out<float>("mean"),
                  k.out<float>("rstd"), k.in<float>("x"), k.in<float>("scale"), k.in<float>("bias"));
  return Status::success();
}

Status launch_group_norm_grad(const CpuCall& k) {
  cpu::group_norm_grad(channel_shape(k), k.call.get_int("groups"), k.out<float>("dx"), k.out_if_given<float>("dscale"),
                       k.out_if_given<float>("dbias"), k.in<float>("x"), k.in<float>("dy"), k.in<float>("mean"),
                       k.in<float>("rstd"), k.in<float>("scale"));
  return Status::success();
}

// A group's elements are neighbours.
bool accepts_group_norm(const OpCall& call, llvm::ArrayRef<Type> results) {
  return all_f32(call, results) && !call.get_int("channels_last");
}

constexpr CpuKernel kernels[] = {
    {op_layer_norm, "rows", all_f32, launch_layer_norm},
    {op_layer_norm_grad, "rows", all_f32, launch_layer_norm_grad},
    {op_rms_norm, "rows", all_f32, launch_rms_norm},
    {op_rms_norm_grad, "rows", all_f32, launch_rms_norm_grad},
    {op_batch_norm, "channels", all_f32, launch_batch_norm},
    {op_batch_norm_grad, "channels", all_f32, launch_batch_norm_grad},
    {op_batch_norm_inference, "channels", all_f32, launch_batch_norm_inference},
    {op_group_norm, "groups", accepts_group_norm, launch_group_norm},
    {op_group_norm_grad, "groups", accepts_group_norm, launch_group_norm_grad},
};

}  // namespace

llvm::ArrayRef<CpuKernel> norm_kernels() { return kernels; }

}  // namespace plimsoll
