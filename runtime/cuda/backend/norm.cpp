#include "runtime/kernels/norm.h"
#include "kernels/cuda/norm/batch_norm.h"
#include "kernels/cuda/norm/group_norm.h"
#include "kernels/cuda/norm/row_norm.h"
#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {
namespace {

// The type of operands i and after that are there; f32 when none is.
cuda::Scalar parameter_scalar(const CudaCall& k, size_t i) {
  for (; i < k.operands.size(); ++i)
    if (k.has(i)) return k.in_scalar(i);
  return cuda::Scalar::F32;
}

// The type of the parameters' gradients: that of the scale at that operand, or else their own.
cuda::Scalar gradient_scalar(const CudaCall& k, size_t scale) {
  if (k.has(scale)) return k.in_scalar(scale);
  return k.results.size() > 1 ? k.out_scalar(1) : cuda::Scalar::F32;
}

// Statistics are results 1 and after, the last of them rstd.
cuda::RowNormCall row_norm_call(const CudaCall& k) {
  const NormRows rows(k.call);
  return {.y = k.out(0),
          .mean = k.out<float>(1),
          .rstd = k.out<float>(k.results.size() - 1),
          .x = k.in(0),
          .scale = k.in(1),
          .bias = k.in(2),
          .x_type = k.in_scalar(0),
          .parameter_type = parameter_scalar(k, 1),
          .rows = rows.count,
          .width = rows.width,
          .eps = eps_of(k.call)};
}

Status launch_layer_norm(const CudaCall& k) { return launched(k, cuda::layer_norm(row_norm_call(k), k.stream)); }
Status launch_rms_norm(const CudaCall& k) { return launched(k, cuda::rms_norm(row_norm_call(k), k.stream)); }

// Statistics are operands from 2 to scale, the last of them rstd.
cuda::RowNormGradCall row_norm_grad_call(const CudaCall& k, size_t scale) {
  const NormRows rows(k.call);
  const ParameterGrads grads(k);
  return {.dx = k.out(0),
          .dscale = grads.dscale,
          .dbias = grads.dbias,
          .x = k.in(0),
          .dy = k.in(1),
          .scale = k.in(scale),
          .addend = k.in(scale + 1),
          .mean = k.in<float>(2),
          .rstd = k.in<float>(scale - 1),
          .x_type = k.in_scalar(0),
          .parameter_type = gradient_scalar(k, scale),
          .rows = rows.count,
          .width = rows.width,
          .workspace = k.scratch<float>()};
}

Status launch_layer_norm_grad(const CudaCall& k) {
  return launched(k, cuda::layer_norm_grad(row_norm_grad_call(k, 4), k.stream));
}
Status launch_rms_norm_grad(const CudaCall& k) {
  return launched(k, cuda::rms_norm_grad(row_norm_grad_call(k, 3), k.stream));
}

cuda::BatchNormCall batch_norm_call(const CudaCall& k) {
  return {.shape = channels_of(k.call),
          .y = k.out(0),
          .x = k.in(0),
          .scale = k.in(1),
          .bias = k.in(2),
          .x_type = k.in_scalar(0),
          .parameter_type = k.has(1) || k.has(2) ? parameter_scalar(k, 1) : cuda::Scalar::F32,
          .eps = eps_of(k.call),
          .workspace = k.scratch<float>()};
}

Status launch_batch_norm(const CudaCall& k) {
  cuda::BatchNormCall call = batch_norm_call(k);
  call.residual = k.in(3);
  call.relu = k.attrs().get_string("activation", "none") == "relu";
  return launched(k, cuda::batch_norm(call, k.out<float>(1), k.out<float>(2), k.stream));
}

Status launch_batch_norm_inference(const CudaCall& k) {
  return launched(
      k, cuda::batch_norm_inference(batch_norm_call(k), k.in(3), k.in(4), k.in_scalar(3), k.in_scalar(4), k.stream));
}

Status launch_batch_norm_grad(const CudaCall& k) {
  const cuda::BatchNormGradCall call{.shape = channels_of(k.call),
                                     .dx = k.out(0),
                                     .dscale = k.out(1),
                                     .dbias = k.out(2),
                                     .x = k.in(0),
                                     .dy = k.in(1),
                                     .scale = k.in(2),
                                     .bias = k.in(5),
                                     .y = k.in(6),
                                     .more_dy = k.in(7),
                                     .dresidual = k.has(6) ? k.out(3) : nullptr,
                                     .mean = k.in<float>(3),
                                     .var = k.in<float>(4),
                                     .x_type = k.in_scalar(0),
                                     .parameter_type = k.in_scalar(2),
                                     .eps = eps_of(k.call),
                                     .workspace = k.scratch<float>()};
  return launched(k, cuda::batch_norm_grad(call, k.stream));
}

cuda::GroupShape groups_of(const CudaCall& k) {
  const cuda::ChannelShape shape = channels_of(k.call);
  return {shape.batch, shape.channels, shape.inner, k.attrs().get_int("groups"), shape.channels_last};
}

Status launch_group_norm(const CudaCall& k) {
  const cuda::GroupNormCall call{.shape = groups_of(k),
                                 .y = k.out(0),
                                 .mean = k.out<float>(1),
                                 .rstd = k.out<float>(2),
                                 .x = k.in(0),
                                 .scale = k.in(1),
                                 .bias = k.in(2),
                                 .x_type = k.in_scalar(0),
                                 .parameter_type = parameter_scalar(k, 1),
                                 .eps = eps_of(k.call)};
  return launched(k, cuda::group_norm(call, k.stream));
}

Status launch_group_norm_grad(const CudaCall& k) {
  const ParameterGrads grads(k);
  const cuda::GroupNormGradCall call{.shape = groups_of(k),
                                     .dx = k.out(0),
                                     .dscale = grads.dscale,
                                     .dbias = grads.dbias,
                                     .x = k.in(0),
                                     .dy = k.in(1),
                                     .scale = k.in(4),
                                     .mean = k.in<float>(2),
                                     .rstd = k.in<float>(3),
                                     .x_type = k.in_scalar(0),
                                     .parameter_type = gradient_scalar(k, 4),
                                     .workspace = k.scratch<float>()};
  return launched(k, cuda::group_norm_grad(call, k.stream));
}

cuda::ResponseShape response_of(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.in_shape(0);
  const Attrs& attrs = k.attrs();
  return {.batch = shape[0],
          .channels = shape[1],
          .inner = element_count(shape.drop_front(2)),
          .size = attrs.get_int("size"),
          .alpha = static_cast<float>(attrs.get_float("alpha")),
          .beta = static_cast<float>(attrs.get_float("beta")),
          .bias = static_cast<float>(attrs.get_float("bias"))};
}

Status launch_lrn(const CudaCall& k) {
  return launched(k, cuda::lrn(response_of(k), k.in_scalar(0), k.out(0), k.in(0), k.stream));
}
Status launch_lrn_grad(const CudaCall& k) {
  return launched(k, cuda::lrn_grad(response_of(k), k.in_scalar(0), k.out(0), k.in(0), k.in(1), k.stream));
}

constexpr CudaLauncher launchers[] = {
    {kernel::layer_norm_rows, launch_layer_norm},
    {kernel::layer_norm_grad_rows, launch_layer_norm_grad},
    {kernel::rms_norm_rows, launch_rms_norm},
    {kernel::rms_norm_grad_rows, launch_rms_norm_grad},
    {kernel::batch_norm_channels, launch_batch_norm},
    {kernel::batch_norm_grad_channels, launch_batch_norm_grad},
    {kernel::batch_norm_inference_channels, launch_batch_norm_inference},
    {kernel::group_norm_groups, launch_group_norm},
    {kernel::group_norm_grad_groups, launch_group_norm_grad},
    {kernel::lrn_elements, launch_lrn},
    {kernel::lrn_grad_elements, launch_lrn_grad},
};
static_assert(launches_each(norm_candidates, launchers));

}  // namespace

llvm::ArrayRef<CudaLauncher> norm_launchers() { return launchers; }

}  // namespace plimsoll
