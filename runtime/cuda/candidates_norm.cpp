#include "kernels/cuda/common/partials.h"
#include "runtime/cuda/float_types.h"

namespace plimsoll {
namespace {

constexpr int64_t float_bytes = sizeof(float);

bool is_parameter_of(DType parameter, DType x) { return parameter == DType::F32 || parameter == x; }

// x computes in f32, and the parameters beside it are f32 or of its type; `first` is the first of these operands.
bool accepts_row_norm(const OpCall& call, size_t first) {
  const DType x = call.operand(0).dtype;
  if (!computes_in_f32(x)) return false;
  for (size_t i = first; i < call.count(); ++i)
    if (call.has(i) && !is_parameter_of(call.operand(i).dtype, x)) return false;
  return true;
}

bool accepts_norm(const OpCall& call, llvm::ArrayRef<Type>) { return accepts_row_norm(call, 1); }
bool accepts_layer_norm_grad(const OpCall& call, llvm::ArrayRef<Type>) { return accepts_row_norm(call, 4); }
bool accepts_rms_norm_grad(const OpCall& call, llvm::ArrayRef<Type>) { return accepts_row_norm(call, 3); }

int64_t row_norm_grad_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const llvm::ArrayRef<int64_t> shape = call.operand(0).shape;
  const int64_t axis = call.attrs.get_int("axis"), width = element_count(shape.drop_front(axis));
  const auto parameters = static_cast<int64_t>(results.size()) - 1;
  return parameters * cuda::row_norm_partials(element_count(shape.take_front(axis))) * width * float_bytes;
}

cuda::ChannelShape channels_of(const OpCall& call) {
  const llvm::ArrayRef<int64_t> shape = call.operand(0).shape;
  if (call.attrs.get_int("channels_last"))
    return {shape[0], shape.back(), element_count(shape.drop_front().drop_back()), true};
  return {shape[0], shape[1], element_count(shape.drop_front(2)), false};
}

// Places within a channel and within a sample are counted in 32 bits.
bool accepts_batch_norm(const OpCall& call, llvm::ArrayRef<Type>) {
  const cuda::ChannelShape shape = channels_of(call);
  const DType x = call.operand(0).dtype;
  for (size_t i = 1; i < call.count(); ++i)
    if (call.has(i) && !computes_in_f32(call.operand(i).dtype)) return false;
  return computes_in_f32(x) && shape.per_channel() <= INT32_MAX && shape.channels * shape.inner <= INT32_MAX;
}

int64_t batch_norm_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::batch_norm_workspace(channels_of(call), dtype_bytes(call.operand(0).dtype)) * float_bytes;
}
int64_t batch_norm_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::batch_norm_grad_workspace(channels_of(call), dtype_bytes(call.operand(0).dtype)) * float_bytes;
}
int64_t batch_norm_inference_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::batch_norm_inference_workspace(channels_of(call)) * float_bytes;
}

// Places within a sample are counted in 32 bits.
bool accepts_group_norm(const OpCall& call, llvm::ArrayRef<Type>) {
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i) && !computes_in_f32(call.operand(i).dtype)) return false;
  const cuda::ChannelShape shape = channels_of(call);
  if (shape.channels_last && shape.channels / call.attrs.get_int("groups") > cuda::max_channels_per_group) return false;
  return shape.channels * shape.inner <= INT32_MAX;
}

// Two sums a plane of a channel.
int64_t group_norm_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  const cuda::ChannelShape shape = channels_of(call);
  return 2 * shape.batch * shape.channels * float_bytes;
}

constexpr CudaCandidate candidates[] = {
    {"layer_norm", "rows", accepts_norm},
    {"layer_norm_grad", "rows", accepts_layer_norm_grad, row_norm_grad_workspace},
    {"rms_norm", "rows", accepts_norm},
    {"rms_norm_grad", "rows", accepts_rms_norm_grad, row_norm_grad_workspace},
    {"batch_norm", "channels", accepts_batch_norm, batch_norm_workspace},
    {"batch_norm_grad", "channels", accepts_batch_norm, batch_norm_grad_workspace},
    {"batch_norm_inference", "channels", accepts_batch_norm, batch_norm_inference_workspace},
    {"group_norm", "groups", accepts_group_norm},
    {"group_norm_grad", "groups", accepts_group_norm, group_norm_grad_workspace},
    {"lrn", "elements", one_float_type},
    {"lrn_grad", "elements", one_float_type},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_norm_candidates() { return candidates; }

}  // namespace plimsoll
