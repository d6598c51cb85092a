#include "runtime/kernels/norm.h"
#include "kernels/cuda/norm/resident_channels.h"
#include "runtime/kernels/group_norm_prices.h"

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
  const int64_t inner = element_count(shape.drop_front(2));
  return {shape[0], shape[1], inner, inner == 1};  // of one position channels are last, wherever they stand
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

int64_t row_norm_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  const NormRows rows(call);
  const int64_t parameters = call.attrs.get_int("has_scale") + call.attrs.get_int("has_bias");
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

cuda::ResidentChannels resident_channels_of(const OpCall& call) {
  return {channels_of(call), dtype_bytes(call["x"].dtype)};
}
bool accepts_resident(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_batch_norm(call, results) && resident_channels_of(call).is_taken();
}
int64_t resident_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::resident_workspace(channels_of(call), dtype_bytes(call["x"].dtype)) * float_bytes;
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

// Places within a sample are counted in 32 bits.
bool accepts_group_parts(const OpCall& call, llvm::ArrayRef<Type>) {
  const cuda::ChannelShape shape = channels_of(call);
  return all_compute_in_f32(call) && shape.channels * shape.inner <= INT32_MAX;
}

int64_t group_parts_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::group_parts_workspace(channels_of(call), dtype_bytes(call["x"].dtype)) * float_bytes;
}
int64_t group_parts_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::group_parts_grad_workspace(channels_of(call), call.get_int("groups"), dtype_bytes(call["x"].dtype)) *
         float_bytes;
}

double groups_us(const OpCall& call, const DeviceDescription& device) {
  return device.memory_gb_per_s > 0 ? GroupNormPrice{call, device}.groups_us() : 0;
}
double group_parts_us(const OpCall& call, const DeviceDescription& device) {
  return device.memory_gb_per_s > 0 ? GroupNormPrice{call, device}.parts_us() : 0;
}

constexpr CudaCandidate group_norm_candidate(const OpDef& op, CudaCandidate::WorkspaceFn workspace) {
  return {.op = op,
          .name = "groups",
          .accepts = accepts_group_norm,
          .workspace_bytes = workspace,
          .predicted_us = groups_us};
}
constexpr CudaCandidate group_parts_candidate(const OpDef& op, CudaCandidate::WorkspaceFn workspace) {
  return {.op = op,
          .name = "parts",
          .accepts = accepts_group_parts,
          .workspace_bytes = workspace,
          .predicted_us = group_parts_us};
}

// With a SiLU behind a batch norm its exponentials come on top, as measured on an H200.
constexpr double silu_forward = 1.15, silu_backward = 1.33;

double activation_times(const OpCall& call, double of_silu) {
  return call.attrs.get_string("activation", "none") == "silu" ? of_silu : 1;
}

// One pass over the tensors; without a SiLU the planner's roofline holds.
template <const double& times>
double silu_us(const OpCall& call, const DeviceDescription& device) {
  if (activation_times(call, times) == 1 || device.memory_gb_per_s <= 0) return 0;
  const double us = device.roofline_us(0, moved_bytes(call, llvm::cantFail(infer(call))), std::nullopt);
  return times * us / device.efficiency_of(call.op.name) + device.beside_us(us);
}

bool is_backward(const OpCall& call) { return call.op.name == "batch_norm_grad"; }

// What the second pass over a batch norm reads again: x, and backward dz.
int64_t tensors_again(const OpCall& call) { return is_backward(call) ? 2 : 1; }

// Two passes, with a launch between them, fitted like resident_us to 15 shapes on an H200. Channels that are no whole
// accesses are read one by one.
template <const double& times, int64_t access_bytes>
double channels_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double copy_share = 0.93, single_forward = 2.5, single_backward = 1.7;
  if (device.memory_gb_per_s <= 0) return 0;
  const bool single = cuda::access_length(channels_of(call), dtype_bytes(call["x"].dtype), access_bytes) == 1;
  const double slower = single ? (is_backward(call) ? single_backward : single_forward) : 1;
  const int64_t bytes = moved_bytes(call, llvm::cantFail(infer(call))) + tensors_again(call) * call["x"].bytes();
  return activation_times(call, times) * slower * device.roofline_us(0, bytes, std::nullopt) / copy_share +
         3 * device.launch_us + 2 * device.kernel_us;
}

// One launch, in which blocks wait for each other once. What they do not keep in shared memory is read again.
double resident_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double waiting_us = 6, copy_share = 0.88, of_silu = 1.2;
  if (device.memory_gb_per_s <= 0) return 0;
  const int64_t kept_tensors = is_backward(call) || call.has("residual") ? 2 : 1;
  const int64_t room = device.multiprocessors * cuda::resident_bytes_of_block / kept_tensors;
  const int64_t bytes = moved_bytes(call, llvm::cantFail(infer(call))) +
                        tensors_again(call) * std::max<int64_t>(0, call["x"].bytes() - room);
  return activation_times(call, of_silu) * device.roofline_us(0, bytes, std::nullopt) / copy_share + waiting_us +
         device.launch_us;
}

constexpr CudaCandidate resident(const OpDef& op) {
  return {.op = op,
          .name = "resident",
          .accepts = accepts_resident,
          .workspace_bytes = resident_workspace,
          .predicted_us = resident_us,
          .capability = 90};
}

constexpr CudaCandidate batch_norm_candidate(const OpDef& op, CudaCandidate::WorkspaceFn workspace,
                                             CudaCandidate::TimeFn time) {
  return {
      .op = op, .name = "channels", .accepts = accepts_batch_norm, .workspace_bytes = workspace, .predicted_us = time};
}

bool accepts_dora_scale(const OpCall& call, llvm::ArrayRef<Type>) { return call["a"].dtype == DType::F32; }

// Blocks wait for each other's sums of columns, so that the chip is filled and drained.
double row_norm_grad_us(const OpCall& call, const DeviceDescription& device) {
  const double us = device.roofline_us(0, moved_bytes(call, llvm::cantFail(infer(call))), std::nullopt);
  return us / device.efficiency_of(call.op.name) + device.beside_us(us);
}

constexpr CudaCandidate row_norm_grad_candidate(const OpDef& op) {
  return {.op = op,
          .name = "rows",
          .accepts = accepts_row_norm,
          .workspace_bytes = row_norm_grad_workspace,
          .predicted_us = row_norm_grad_us};
}

constexpr CudaCandidate norm_table[] = {
    {op_layer_norm, "rows", accepts_row_norm},
    row_norm_grad_candidate(op_layer_norm_grad),
    row_norm_grad_candidate(op_layer_norm_grad_dropout),
    {op_rms_norm, "rows", accepts_row_norm},
    row_norm_grad_candidate(op_rms_norm_grad),
    row_norm_grad_candidate(op_rms_norm_grad_dropout),
    batch_norm_candidate(op_batch_norm, batch_norm_workspace, channels_us<silu_forward, cuda::norm_access_bytes>),
    batch_norm_candidate(op_batch_norm_grad, batch_norm_grad_workspace,
                         channels_us<silu_backward, cuda::norm_grad_access_bytes>),
    resident(op_batch_norm),
    resident(op_batch_norm_grad),
    {op_batch_norm_inference, "channels", accepts_batch_norm, batch_norm_inference_workspace},
    {op_batch_moments, "channels", accepts_batch_norm, batch_norm_workspace},
    {op_merge_moments, "channels", all_f32},
    batch_norm_candidate(op_batch_norm_given, batch_norm_inference_workspace, silu_us<silu_forward>),
    batch_norm_candidate(op_batch_norm_sums, batch_norm_grad_workspace, silu_us<silu_backward>),
    batch_norm_candidate(op_batch_norm_dx, batch_norm_dx_workspace, silu_us<silu_backward>),
    group_norm_candidate(op_group_norm, nullptr),
    group_norm_candidate(op_group_norm_grad, group_norm_grad_workspace),
    group_parts_candidate(op_group_norm, group_parts_workspace),
    group_parts_candidate(op_group_norm_grad, group_parts_grad_workspace),
    {op_lrn, "elements", one_float_type},
    {op_lrn_grad, "elements", one_float_type},
    {op_dora_scale, "rows", accepts_dora_scale},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> norm_candidates() { return norm_table; }

}  // namespace plimsoll
