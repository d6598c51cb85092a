#include "runtime/kernels/norm.h"

namespace plimsoll {

NormRows::NormRows(const OpCall& call) {
  const llvm::ArrayRef<int64_t> shape = call["x"].shape;
  const int64_t axis = call.get_int("axis");
  count = element_count(shape.take_front(axis));
  width = element_count(shape.drop_front(axis));
}

cuda::ChannelShape channels_of(const Type& image, bool channels_last) {
  const llvm::ArrayRef<int64_t> shape = image.shape;
  if (channels_last) return {shape[0], shape.back(), element_count(shape.drop_front().drop_back()), true};
  return {shape[0], shape[1], element_count(shape.drop_front(2)), false};
}

cuda::ChannelShape channels_of(const OpCall& call) {
  return channels_of(call["x"], call.get_int("channels_last") != 0);
}

NormActivation activation_of(const OpCall& call) {
  const llvm::StringRef activation = call.attrs.get_string("activation", "none");
  return activation == "relu"   ? NormActivation::Relu
         : activation == "silu" ? NormActivation::Silu
                                : NormActivation::None;
}

NormActivation passed_activation_of(const OpCall& call) {
  return call.attrs.get_string("activation", "relu") == "silu" ? NormActivation::Silu : NormActivation::Relu;
}

namespace {

constexpr int64_t float_bytes = sizeof(float);

// x computes in f32, and the scale and what is behind it are f32 or of x's type.
bool accepts_row_norm(const OpCall& call, llvm::ArrayRef<Type>) {
  const DType x = call["x"].dtype;
  return computes_in_f32(x) &&
         all_operands(
             call, [&](const Type& type) { return type.dtype == DType::F32 || type.dtype == x; }, call.index("scale"));
}

int64_t row_norm_grad_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const NormRows rows(call);
  const auto parameters = static_cast<int64_t>(results.size()) - 1;
  return parameters * cuda::row_norm_partials(rows.count) * rows.width * float_bytes;
}

bool all_compute_in_f32(const OpCall& call) {
  return all_operands(call, [](const Type& type) { return computes_in_f32(type.dtype); });
}

// Places within a channel and within a sample are counted in 32 bits.
bool accepts_batch_norm(const OpCall& call, llvm::ArrayRef<Type>) {
  const cuda::ChannelShape shape = channels_of(call);
  return all_compute_in_f32(call) && shape.per_channel() <= INT32_MAX && shape.channels * shape.inner <= INT32_MAX;
}

int64_t batch_norm_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::batch_norm_workspace(channels_of(call), dtype_bytes(call["x"].dtype)) * float_bytes;
}
int64_t batch_norm_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::batch_norm_grad_workspace(channels_of(call), dtype_bytes(call["x"].dtype)) * float_bytes;
}
int64_t batch_norm_inference_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::batch_norm_inference_workspace(channels_of(call)) * float_bytes;
}

int64_t batch_norm_dx_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::batch_norm_dx_workspace(channels_of(call)) * float_bytes;
}

// Places within a sample are counted in 32 bits.
bool accepts_group_norm(const OpCall& call, llvm::ArrayRef<Type>) {
  const cuda::ChannelShape shape = channels_of(call);
  if (shape.channels_last && shape.channels / call.get_int("groups") > cuda::max_channels_per_group) return false;
  return all_compute_in_f32(call) && shape.channels * shape.inner <= INT32_MAX;
}

// Two sums for each plane of a channel.
int64_t group_norm_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  const cuda::ChannelShape shape = channels_of(call);
  return 2 * shape.batch * shape.channels * float_bytes;
}

// With a SiLU behind a batch norm its exponentials come on top, as measured on an H200; without, the planner's roofline
// holds.
constexpr double silu_forward = 1.15, silu_backward = 1.33;

template <const double& times>
double silu_us(const OpCall& call, const DeviceDescription& device) {
  if (call.attrs.get_string("activation", "none") != "silu" || device.memory_gb_per_s <= 0) return 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i)) bytes += call.operand(i).bytes();
  for (const Type& result : llvm::cantFail(infer(call))) bytes += result.bytes();
  const double us = device.roofline_us(0, bytes, std::nullopt);
  return times * us / device.efficiency_of(call.op.name) + device.beside_us(us);
}

constexpr CudaCandidate batch_norm_candidate(const OpDef& op, CudaCandidate::WorkspaceFn workspace,
                                             CudaCandidate::TimeFn time) {
  return {
      .op = op, .name = "channels", .accepts = accepts_batch_norm, .workspace_bytes = workspace, .predicted_us = time};
}

bool accepts_dora_scale(const OpCall& call, llvm::ArrayRef<Type>) { return call["a"].dtype == DType::F32; }

constexpr CudaCandidate candidates[] = {
    {op_layer_norm, "rows", accepts_row_norm},
    {op_layer_norm_grad, "rows", accepts_row_norm, row_norm_grad_workspace},
    {op_rms_norm, "rows", accepts_row_norm},
    {op_rms_norm_grad, "rows", accepts_row_norm, row_norm_grad_workspace},
    batch_norm_candidate(op_batch_norm, batch_norm_workspace, silu_us<silu_forward>),
    batch_norm_candidate(op_batch_norm_grad, batch_norm_grad_workspace, silu_us<silu_backward>),
    {op_batch_norm_inference, "channels", accepts_batch_norm, batch_norm_inference_workspace},
    {op_batch_moments, "channels", accepts_batch_norm, batch_norm_workspace},
    {op_merge_moments, "channels", all_f32},
    batch_norm_candidate(op_batch_norm_given, batch_norm_inference_workspace, silu_us<silu_forward>),
    batch_norm_candidate(op_batch_norm_sums, batch_norm_grad_workspace, silu_us<silu_backward>),
    batch_norm_candidate(op_batch_norm_dx, batch_norm_dx_workspace, silu_us<silu_backward>),
    {op_group_norm, "groups", accepts_group_norm},
    {op_group_norm_grad, "groups", accepts_group_norm, group_norm_grad_workspace},
    {op_lrn, "elements", one_float_type},
    {op_lrn_grad, "elements", one_float_type},
    {op_dora_scale, "rows", accepts_dora_scale},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> norm_candidates() { return candidates; }

}  // namespace plimsoll
