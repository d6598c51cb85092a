#include "kernels/cuda/norm/batch_norm.h"
#include "kernels/cuda/norm/group_norm.h"
#include "kernels/cuda/norm/row_norm.h"
#include "runtime/cuda/backend/launched.h"

namespace plimsoll {
namespace {

float eps_of(const CudaCall& k) { return static_cast<float>(k.call.attrs.get_float("eps")); }

// The type of operands i and after that are there; f32 when none is.
cuda::Scalar parameter_scalar(const CudaCall& k, size_t i) {
  for (; i < k.operands.size(); ++i)
    if (k.has(i)) return k.in_scalar(i);
  return cuda::Scalar::F32;
}

// Results after dx, in order: dscale and dbias, each only where the attributes ask for it.
struct ParameterGrads {
  void *dscale = nullptr, *dbias = nullptr;
  cuda::Scalar scalar = cuda::Scalar::F32;

  ParameterGrads(const CudaCall& k, size_t scale) {
    size_t next = 1;
    if (k.call.attrs.get_int("has_scale")) dscale = k.out(next++);
    if (k.call.attrs.get_int("has_bias")) dbias = k.out(next++);
    if (k.has(scale))
      scalar = k.in_scalar(scale);
    else if (next > 1)
      scalar = k.out_scalar(1);
  }
};

// The tensor as rows that are normalised each by itself.
struct Rows {
  int64_t count, width;
  explicit Rows(const CudaCall& k) {
    const llvm::ArrayRef<int64_t> shape = k.call.operand(0).shape;
    const int64_t axis = k.call.attrs.get_int("axis");
    count = element_count(shape.take_front(axis));
    width = element_count(shape.drop_front(axis));
  }
};

// Statistics are results 1 and after, the last of them rstd.
cuda::RowNormCall row_norm_call(const CudaCall& k) {
  const Rows rows(k);
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
          .eps = eps_of(k)};
}

Status launch_layer_norm(const CudaCall& k) { return launched(k, cuda::layer_norm(row_norm_call(k), k.stream)); }
Status launch_rms_norm(const CudaCall& k) { return launched(k, cuda::rms_norm(row_norm_call(k), k.stream)); }

// Statistics are operands from 2 to scale, the last of them rstd.
cuda::RowNormGradCall row_norm_grad_call(const CudaCall& k, size_t scale) {
  const Rows rows(k);
  const ParameterGrads grads(k, scale);
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
          .parameter_type = grads.scalar,
          .rows = rows.count,
          .width = rows.width,
          .workspace = static_cast<float*>(k.workspace)};
}

Status launch_layer_norm_grad(const CudaCall& k) {
  return launched(k, cuda::layer_norm_grad(row_norm_grad_call(k, 4), k.stream));
}
Status launch_rms_norm_grad(const CudaCall& k) {
  return launched(k, cuda::rms_norm_grad(row_norm_grad_call(k, 3), k.stream));
}

cuda::ChannelShape channels_of(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.call.operand(0).shape;
  if (k.call.attrs.get_int("channels_last"))
    return {shape[0], shape.back(), element_count(shape.drop_front().drop_back()), true};
  return {shape[0], shape[1], element_count(shape.drop_front(2)), false};
}

cuda::BatchNormCall batch_norm_call(const CudaCall& k) {
  return {.shape = channels_of(k),
          .y = k.out(0),
          .x = k.in(0),
          .scale = k.in(1),
          .bias = k.in(2),
          .x_type = k.in_scalar(0),
          .parameter_type = k.has(1)   ? k.in_scalar(1)
                            : k.has(2) ? k.in_scalar(2)
                                       : cuda::Scalar::F32,
          .eps = eps_of(k),
          .workspace = static_cast<float*>(k.workspace)};
}

Status launch_batch_norm(const CudaCall& k) {
  cuda::BatchNormCall call = batch_norm_call(k);
  call.residual = k.in(3);
  call.relu = k.call.attrs.get_string("activation", "none") == "relu";
  return launched(k, cuda::batch_norm(call, k.out<float>(1), k.out<float>(2), k.stream));
}

Status launch_batch_norm_inference(const CudaCall& k) {
  return launched(
      k, cuda::batch_norm_inference(batch_norm_call(k), k.in(3), k.in(4), k.in_scalar(3), k.in_scalar(4), k.stream));
}

Status launch_batch_norm_grad(const CudaCall& k) {
  const cuda::BatchNormGradCall call{.shape = channels_of(k),
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
                                     .eps = eps_of(k),
                                     .workspace = static_cast<float*>(k.workspace)};
  return launched(k, cuda::batch_norm_grad(call, k.stream));
}

cuda::GroupShape groups_of(const CudaCall& k) {
  const cuda::ChannelShape shape = channels_of(k);
  return {shape.batch, shape.channels, shape.inner, k.call.attrs.get_int("groups"), shape.channels_last};
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
                                 .eps = eps_of(k)};
  return launched(k, cuda::group_norm(call, k.stream));
}

Status launch_group_norm_grad(const CudaCall& k) {
  const ParameterGrads grads(k, 4);
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
                                     .parameter_type = grads.scalar,
                                     .workspace = static_cast<float*>(k.workspace)};
  return launched(k, cuda::group_norm_grad(call, k.stream));
}

cuda::ResponseShape response_of(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.call.operand(0).shape;
  const Attrs& attrs = k.call.attrs;
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
    {"layer_norm", "rows", launch_layer_norm},
    {"layer_norm_grad", "rows", launch_layer_norm_grad},
    {"rms_norm", "rows", launch_rms_norm},
    {"rms_norm_grad", "rows", launch_rms_norm_grad},
    {"batch_norm", "channels", launch_batch_norm},
    {"batch_norm_grad", "channels", launch_batch_norm_grad},
    {"batch_norm_inference", "channels", launch_batch_norm_inference},
    {"group_norm", "groups", launch_group_norm},
    {"group_norm_grad", "groups", launch_group_norm_grad},
    {"lrn", "elements", launch_lrn},
    {"lrn_grad", "elements", launch_lrn_grad},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_norm_launchers() { return launchers; }

}  // namespace plimsoll
