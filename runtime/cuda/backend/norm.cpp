#include "runtime/kernels/norm.h"
#include "kernels/cuda/norm/batch_norm.h"
#include "kernels/cuda/norm/dora_scale.h"
#include "kernels/cuda/norm/group_norm.h"
#include "kernels/cuda/norm/row_norm.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/elementwise.h"

namespace plimsoll {
namespace {

// The type of the first of these that is there, and of the others; f32 when none is.
Scalar parameter_scalar(const CudaCall& k, std::initializer_list<llvm::StringRef> parameters) {
  for (llvm::StringRef parameter : parameters)
    if (k.has(parameter)) return k.in_scalar(parameter);
  return Scalar::F32;
}

// The type of the parameters' gradients, which are the results behind dx: that of the scale, or else their own.
Scalar gradient_scalar(const CudaCall& k) {
  if (k.has("scale")) return k.in_scalar("scale");
  return k.results.size() > 1 ? scalar_of(k.results.back().type.dtype) : Scalar::F32;
}

// What both row norms have.
cuda::RowNormCall row_norm_call(const CudaCall& k) {
  const NormRows rows(k.call);
  return {.y = k.out("y"),
          .rstd = k.out<float>("rstd"),
          .x = k.in("x"),
          .scale = k.in("scale"),
          .x_type = k.in_scalar("x"),
          .rows = rows.count,
          .width = rows.width,
          .eps = eps_of(k.call)};
}

Status launch_layer_norm(const CudaCall& k) {
  cuda::RowNormCall call = row_norm_call(k);
  call.mean = k.out<float>("mean");
  call.bias = k.in("bias");
  call.parameter_type = parameter_scalar(k, {"scale", "bias"});
  return launched(k, cuda::layer_norm(call, k.stream));
}

Status launch_rms_norm(const CudaCall& k) {
  cuda::RowNormCall call = row_norm_call(k);
  call.parameter_type = parameter_scalar(k, {"scale"});
  return launched(k, cuda::rms_norm(call, k.stream));
}

cuda::RowNormGradCall row_norm_grad_call(const CudaCall& k) {
  const NormRows rows(k.call);
  return {.dx = k.out("dx"),
          .dscale = k.out_if_given("dscale"),
          .x = k.in("x"),
          .dy = k.in("dy"),
          .scale = k.in("scale"),
          .addend = k.in("addend"),
          .rstd = k.in<float>("rstd"),
          .x_type = k.in_scalar("x"),
          .parameter_type = gradient_scalar(k),
          .rows = rows.count,
          .width = rows.width,
          .workspace = k.scratch<float>()};
}

// With the dropout of dx.
cuda::RowNormGradCall dropped_gradient_call(const CudaCall& k) {
  cuda::RowNormGradCall call = row_norm_grad_call(k);
  call.dropped = k.out("dropped");
  call.stream = {k.in<int64_t>("rng"), static_cast<uint32_t>(k.call.get_int("id"))};
  call.dropout = element_dropout(k.attrs());
  return call;
}

Status launch_centered_gradient(const CudaCall& k, cuda::RowNormGradCall call) {
  call.mean = k.in<float>("mean");
  call.dbias = k.out_if_given("dbias");
  return launched(k, cuda::layer_norm_grad(call, k.stream));
}

Status launch_layer_norm_grad(const CudaCall& k) { return launch_centered_gradient(k, row_norm_grad_call(k)); }
Status launch_layer_norm_grad_dropout(const CudaCall& k) {
  return launch_centered_gradient(k, dropped_gradient_call(k));
}

Status launch_rms_norm_grad(const CudaCall& k) {
  return launched(k, cuda::rms_norm_grad(row_norm_grad_call(k), k.stream));
}
Status launch_rms_norm_grad_dropout(const CudaCall& k) {
  return launched(k, cuda::rms_norm_grad(dropped_gradient_call(k), k.stream));
}

cuda::BatchNormCall batch_norm_call(const CudaCall& k) {
  return {.shape = channels_of(k.call),
          .y = k.out("y"),
          .x = k.in("x"),
          .scale = k.in("scale"),
          .bias = k.in("bias"),
          .x_type = k.in_scalar("x"),
          .parameter_type = k.in_scalar("scale"),
          .eps = eps_of(k.call),
          .workspace = k.scratch<float>()};
}

// With what may stand behind the norm.
cuda::BatchNormCall fused_batch_norm_call(const CudaCall& k) {
  cuda::BatchNormCall call = batch_norm_call(k);
  call.residual = k.in("residual");
  call.activation = activation_of(k.call);
  return call;
}

Status launch_batch_norm(const CudaCall& k) {
  return launched(k, cuda::batch_norm(fused_batch_norm_call(k), k.out<float>("mean"), k.out<float>("var"), k.stream));
}

Status launch_batch_norm_resident(const CudaCall& k) {
  return launched(
      k, cuda::batch_norm_resident(fused_batch_norm_call(k), k.out<float>("mean"), k.out<float>("var"), k.stream));
}

Status launch_by_given(const CudaCall& k, const cuda::BatchNormCall& call) {
  return launched(k, cuda::batch_norm_inference(call, k.in("mean"), k.in("var"), k.in_scalar("mean"),
                                                k.in_scalar("var"), k.stream));
}
Status launch_batch_norm_inference(const CudaCall& k) { return launch_by_given(k, batch_norm_call(k)); }
Status launch_batch_norm_given(const CudaCall& k) { return launch_by_given(k, fused_batch_norm_call(k)); }

Status launch_batch_moments(const CudaCall& k) {
  const cuda::BatchNormCall call{.shape = channels_of(k.call),
                                 .y = nullptr,
                                 .x = k.in("x"),
                                 .scale = nullptr,
                                 .bias = nullptr,
                                 .x_type = k.in_scalar("x"),
                                 .parameter_type = k.in_scalar("x"),
                                 .eps = 1,
                                 .workspace = k.scratch<float>()};
  auto* moments = k.out<float>("moments");
  return launched(k, cuda::batch_moments(call, moments, moments + call.shape.channels, k.stream));
}

Status launch_merge_moments(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.in_shape("moments");
  return launched(k, cuda::merge_moments(k.out<float>("mean"), k.out<float>("var"), k.in<float>("moments"), shape[0],
                                         shape[2], k.stream));
}

cuda::BatchNormGradCall batch_norm_grad_call(const CudaCall& k) {
  return {.shape = channels_of(k.call),
          .dx = nullptr,
          .dscale = nullptr,
          .dbias = nullptr,
          .x = k.in("x"),
          .dy = nullptr,
          .scale = k.in("scale"),
          .activation = passed_activation_of(k.call),
          .bias = k.in("bias"),
          .mean = k.in<float>("mean"),
          .var = k.in<float>("var"),
          .x_type = k.in_scalar("x"),
          .parameter_type = k.in_scalar("scale"),
          .eps = eps_of(k.call),
          .workspace = k.scratch<float>()};
}

// The part that goes over dy and makes the parameters' gradients.
cuda::BatchNormGradCall first_part_call(const CudaCall& k) {
  cuda::BatchNormGradCall call = batch_norm_grad_call(k);
  call.dscale = k.out("dscale");
  call.dbias = k.out("dbias");
  call.dy = k.in("dy");
  call.y = k.in("y");
  call.more_dy = k.in("more_dy");
  call.dresidual = k.out_if_given("dresidual");
  return call;
}

cuda::BatchNormGradCall both_parts_call(const CudaCall& k) {
  cuda::BatchNormGradCall call = first_part_call(k);
  call.dx = k.out("dx");
  return call;
}

Status launch_batch_norm_grad(const CudaCall& k) {
  return launched(k, cuda::batch_norm_grad(both_parts_call(k), k.stream));
}
Status launch_batch_norm_grad_resident(const CudaCall& k) {
  return launched(k, cuda::batch_norm_grad_resident(both_parts_call(k), k.stream));
}

Status launch_batch_norm_sums(const CudaCall& k) {
  return launched(k, cuda::batch_norm_sums(first_part_call(k), k.out<float>("sums"), k.stream));
}

Status launch_batch_norm_dx(const CudaCall& k) {
  cuda::BatchNormGradCall call = batch_norm_grad_call(k);
  call.dx = k.out("dx");
  call.dy = k.in("dz");
  const auto count = static_cast<float>(call.shape.per_channel() * k.call.get_int("ranks"));
  return launched(k, cuda::batch_norm_dx(call, k.in<float>("sums"), count, k.stream));
}

cuda::GroupShape groups_of(const CudaCall& k) {
  const cuda::ChannelShape shape = channels_of(k.call);
  return {shape.batch, shape.channels, shape.inner, k.call.get_int("groups"), shape.channels_last};
}

cuda::GroupNormCall group_norm_call(const CudaCall& k) {
  return {.shape = groups_of(k),
          .activation = activation_of(k.call),
          .y = k.out("y"),
          .mean = k.out<float>("mean"),
          .rstd = k.out<float>("rstd"),
          .x = k.in("x"),
          .scale = k.in("scale"),
          .bias = k.in("bias"),
          .x_type = k.in_scalar("x"),
          .parameter_type = parameter_scalar(k, {"scale", "bias"}),
          .eps = eps_of(k.call),
          .workspace = k.scratch<float>()};
}
Status launch_group_norm(const CudaCall& k) { return launched(k, cuda::group_norm(group_norm_call(k), k.stream)); }
Status launch_group_norm_in_parts(const CudaCall& k) {
  return launched(k, cuda::group_norm_in_parts(group_norm_call(k), k.stream));
}

cuda::GroupNormGradCall group_norm_grad_call(const CudaCall& k) {
  return {.shape = groups_of(k),
          .activation = activation_of(k.call),
          .dx = k.out("dx"),
          .dscale = k.out_if_given("dscale"),
          .dbias = k.out_if_given("dbias"),
          .x = k.in("x"),
          .dy = k.in("dy"),
          .scale = k.in("scale"),
          .bias = k.in("bias"),
          .mean = k.in<float>("mean"),
          .rstd = k.in<float>("rstd"),
          .x_type = k.in_scalar("x"),
          .parameter_type = k.has("bias") ? k.in_scalar("bias") : gradient_scalar(k),
          .workspace = k.scratch<float>()};
}
Status launch_group_norm_grad(const CudaCall& k) {
  return launched(k, cuda::group_norm_grad(group_norm_grad_call(k), k.stream));
}
Status launch_group_norm_grad_in_parts(const CudaCall& k) {
  return launched(k, cuda::group_norm_grad_in_parts(group_norm_grad_call(k), k.stream));
}

cuda::ResponseShape response_of(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.in_shape("x");
  const OpCall& call = k.call;
  return {.batch = shape[0],
          .channels = shape[1],
          .inner = element_count(shape.drop_front(2)),
          .size = call.get_int("size"),
          .alpha = static_cast<float>(call.get_float("alpha")),
          .beta = static_cast<float>(call.get_float("beta")),
          .bias = static_cast<float>(call.get_float("bias"))};
}

Status launch_lrn(const CudaCall& k) {
  return launched(k, cuda::lrn(response_of(k), k.in_scalar("x"), k.out("y"), k.in("x"), k.stream));
}
Status launch_lrn_grad(const CudaCall& k) {
  return launched(k, cuda::lrn_grad(response_of(k), k.in_scalar("x"), k.out("dx"), k.in("x"), k.in("dy"), k.stream));
}

Status launch_dora_scale(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> a = k.in_shape("a");
  return launched(k, cuda::dora_scale({.outputs = k.in_shape("b")[0],
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
                                       .norms = k.out<float>("norms")},
                                      k.stream));
}

constexpr CudaLauncher norm_table[] = {
    {op_layer_norm, "rows", launch_layer_norm},
    {op_layer_norm_grad, "rows", launch_layer_norm_grad},
    {op_layer_norm_grad_dropout, "rows", launch_layer_norm_grad_dropout},
    {op_rms_norm, "rows", launch_rms_norm},
    {op_rms_norm_grad, "rows", launch_rms_norm_grad},
    {op_rms_norm_grad_dropout, "rows", launch_rms_norm_grad_dropout},
    {op_batch_norm, "channels", launch_batch_norm},
    {op_batch_norm, "resident", launch_batch_norm_resident},
    {op_batch_norm_grad, "channels", launch_batch_norm_grad},
    {op_batch_norm_grad, "resident", launch_batch_norm_grad_resident},
    {op_batch_norm_inference, "channels", launch_batch_norm_inference},
    {op_batch_moments, "channels", launch_batch_moments},
    {op_merge_moments, "channels", launch_merge_moments},
    {op_batch_norm_given, "channels", launch_batch_norm_given},
    {op_batch_norm_sums, "channels", launch_batch_norm_sums},
    {op_batch_norm_dx, "channels", launch_batch_norm_dx},
    {op_group_norm, "groups", launch_group_norm},
    {op_group_norm_grad, "groups", launch_group_norm_grad},
    {op_group_norm, "parts", launch_group_norm_in_parts},
    {op_group_norm_grad, "parts", launch_group_norm_grad_in_parts},
    {op_lrn, "elements", launch_lrn},
    {op_lrn_grad, "elements", launch_lrn_grad},
    {op_dora_scale, "rows", launch_dora_scale},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> norm_launchers() { return norm_table; }

}  // namespace plimsoll
