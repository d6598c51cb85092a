#include "kernels/cpu/norm/norm.h"
#include "kernels/cpu/norm/channel_norm.h"
#include "kernels/cpu/norm/dora_scale.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/random_stream.h"
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

// The dropout of a gradient that has just been made.
Status drop_gradient(const CpuCall& k, Status (*launch)(const CpuCall& k)) {
  if (Status s = launch(k)) return s;
  cpu::dropout(random_stream(k), element_dropout(k.attrs()), k.out<float>("dropped"), k.out<float>("dx"), k.elements());
  return Status::success();
}

Status launch_layer_norm_grad_dropout(const CpuCall& k) { return drop_gradient(k, launch_layer_norm_grad); }

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

Status launch_rms_norm_grad_dropout(const CpuCall& k) { return drop_gradient(k, launch_rms_norm_grad); }

cpu::BatchNormCall batch_norm_call(const CpuCall& k) {
  return {.shape = channel_shape(k),
          .eps = eps_of(k.call),
          .y = k.out<float>("y"),
          .mean = nullptr,
          .var = nullptr,
          .x = k.in<float>("x"),
          .scale = k.in<float>("scale"),
          .bias = k.in<float>("bias")};
}

// With what may stand behind the norm.
cpu::BatchNormCall fused_batch_norm_call(const CpuCall& k) {
  cpu::BatchNormCall call = batch_norm_call(k);
  call.residual = k.in<float>("residual");
  call.activation = activation_of(k.call);
  return call;
}

Status launch_batch_norm(const CpuCall& k) {
  cpu::BatchNormCall call = fused_batch_norm_call(k);
  call.mean = k.out<float>("mean");
  call.var = k.out<float>("var");
  cpu::batch_norm(call);
  return Status::success();
}

cpu::BatchNormGradCall batch_norm_grad_call(const CpuCall& k) {
  return {.shape = channel_shape(k),
          .eps = eps_of(k.call),
          .dx = nullptr,
          .dscale = nullptr,
          .dbias = nullptr,
          .x = k.in<float>("x"),
          .dy = nullptr,
          .scale = k.in<float>("scale"),
          .mean = k.in<float>("mean"),
          .var = k.in<float>("var"),
          .activation = passed_activation_of(k.call),
          .bias = k.in<float>("bias")};
}

// The part that goes over dy and makes the parameters' gradients.
cpu::BatchNormGradCall first_part_call(const CpuCall& k) {
  cpu::BatchNormGradCall call = batch_norm_grad_call(k);
  call.dscale = k.out<float>("dscale");
  call.dbias = k.out<float>("dbias");
  call.dy = k.in<float>("dy");
  call.y = k.in<float>("y");
  call.more_dy = k.in<float>("more_dy");
  call.dresidual = k.out_if_given<float>("dresidual");
  return call;
}

Status launch_batch_norm_grad(const CpuCall& k) {
  cpu::BatchNormGradCall call = first_part_call(k);
  call.dx = k.out<float>("dx");
  cpu::batch_norm_grad(call);
  return Status::success();
}

Status launch_batch_norm_inference(const CpuCall& k) {
  cpu::batch_norm_given(batch_norm_call(k), k.in<float>("mean"), k.in<float>("var"));
  return Status::success();
}

Status launch_batch_moments(const CpuCall& k) {
  const cpu::ChannelShape shape = channel_shape(k);
  auto* moments = k.out<float>("moments");
  cpu::batch_moments(shape, moments, moments + shape.channels, k.in<float>("x"));
  return Status::success();
}

Status launch_batch_norm_given(const CpuCall& k) {
  cpu::batch_norm_given(fused_batch_norm_call(k), k.in<float>("mean"), k.in<float>("var"));
  return Status::success();
}

Status launch_batch_norm_sums(const CpuCall& k) {
  cpu::batch_norm_sums(first_part_call(k), k.out<float>("sums"));
  return Status::success();
}

Status launch_batch_norm_dx(const CpuCall& k) {
  cpu::BatchNormGradCall call = batch_norm_grad_call(k);
  call.dx = k.out<float>("dx");
  call.dy = k.in<float>("dz");
  const auto count = static_cast<double>(channels_of(k.call).per_channel() * k.call.get_int("ranks"));
  cpu::batch_norm_dx(call, k.in<float>("sums"), count);
  return Status::success();
}

Status launch_group_norm(const CpuCall& k) {
  cpu::group_norm(channel_shape(k), k.call.get_int("groups"), activation_of(k.call), eps_of(k.call), k.out<float>("y"),
                  k.out<float>("mean"), k.out<float>("rstd"), k.in<float>("x"), k.in<float>("scale"),
                  k.in<float>("bias"));
  return Status::success();
}

Status launch_group_norm_grad(const CpuCall& k) {
  cpu::group_norm_grad(channel_shape(k), k.call.get_int("groups"), activation_of(k.call), k.out<float>("dx"),
                       k.out_if_given<float>("dscale"), k.out_if_given<float>("dbias"), k.in<float>("x"),
                       k.in<float>("dy"), k.in<float>("mean"), k.in<float>("rstd"), k.in<float>("scale"),
                       k.in<float>("bias"));
  return Status::success();
}

// A group's elements are neighbours.
bool accepts_group_norm(const OpCall& call, llvm::ArrayRef<Type> results) {
  return all_f32(call, results) && !call.get_int("channels_last");
}

bool accepts_dora_scale(const OpCall& call, llvm::ArrayRef<Type>) { return call["a"].dtype == DType::F32; }

Status launch_dora_scale(const CpuCall& k) {
  const llvm::ArrayRef<int64_t> a = k.in_shape("a");
  cpu::dora_scale({.outputs = k.in_shape("b")[0],
                   .inputs = a[1],
                   .rank = a[0],
                   .by_outputs = k.call.get_int("transpose_w") != 0,
                   .scale = static_cast<float>(k.call.get_float("scale")),
                   .w = k.in("w"),
                   .w_type = k.in_scalar("w"),
                   .a = k.in<float>("a"),
                   .b = k.in<float>("b"),
                   .magnitude = k.in<float>("magnitude"),
                   .y = k.out<float>("y"),
                   .norms = k.out<float>("norms")});
  return Status::success();
}

constexpr CpuKernel norm_table[] = {
    {op_layer_norm, "rows", all_f32, launch_layer_norm},
    {op_layer_norm_grad, "rows", all_f32, launch_layer_norm_grad},
    {op_layer_norm_grad_dropout, "rows", floats_are_f32, launch_layer_norm_grad_dropout},
    {op_rms_norm, "rows", all_f32, launch_rms_norm},
    {op_rms_norm_grad, "rows", all_f32, launch_rms_norm_grad},
    {op_rms_norm_grad_dropout, "rows", floats_are_f32, launch_rms_norm_grad_dropout},
    {op_batch_norm, "channels", all_f32, launch_batch_norm},
    {op_batch_norm_grad, "channels", all_f32, launch_batch_norm_grad},
    {op_batch_norm_inference, "channels", all_f32, launch_batch_norm_inference},
    {op_batch_moments, "channels", all_f32, launch_batch_moments},
    {op_batch_norm_given, "channels", all_f32, launch_batch_norm_given},
    {op_batch_norm_sums, "channels", all_f32, launch_batch_norm_sums},
    {op_batch_norm_dx, "channels", all_f32, launch_batch_norm_dx},
    {op_group_norm, "groups", accepts_group_norm, launch_group_norm},
    {op_group_norm_grad, "groups", accepts_group_norm, launch_group_norm_grad},
    {op_dora_scale, "rows", accepts_dora_scale, launch_dora_scale},
};

}  // namespace

llvm::ArrayRef<CpuKernel> norm_kernels() { return norm_table; }

}  // namespace plimsoll
