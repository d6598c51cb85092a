#include "ir/attention_sizes.h"
#include "runtime/cuda/candidates.h"
#include "runtime/cuda/padded_channels.h"

// What cuDNN is asked to do: convolutions of 1 to 3 spatial dimensions, and attention of 16-bit floats without mask
// or dropout. Everything else stays with our own kernels.

namespace plimsoll {
namespace {

bool is_one_of(DType dtype, std::initializer_list<DType> wanted) { return llvm::is_contained(wanted, dtype); }

// The weight gradient of 16-bit operands may be asked for in f32: it is made in 16 bits and widened.
bool is_widened(const OpCall& call, llvm::ArrayRef<Type> results) {
  return results[0].dtype == DType::F32 && is_16_bit_float(call.operand(0).dtype);
}

bool accepts_convolution(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType dtype = call.operand(0).dtype;
  if (!is_one_of(dtype, {DType::F32, DType::BF16, DType::F16})) return false;
  if (call.operand(0).rank() < 3 || call.operand(0).rank() > 5 || results[0].elements() == 0) return false;
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i) && (call.operand(i).dtype != dtype || call.operand(i).elements() == 0)) return false;
  return results[0].dtype == dtype || is_widened(call, results);
}

int64_t convolution_workspace(const OpCall&, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  return device.convolution_workspace_bytes;
}

int64_t weight_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return convolution_workspace(call, results, device) + (is_widened(call, results) ? (results[0].bytes() / 2 + 255) / 256 * 256 : 0);
}

// x has channels that cuDNN pads by itself, y has not.
bool accepts_padded(const OpCall& call, llvm::ArrayRef<Type> results, const Type& y) {
  return accepts_convolution(call, results) && is_16_bit_float(call.operand(0).dtype) && call.attrs.get_int("channels_last") &&
         call.attrs.get_int("groups", 1) == 1 && has_odd_channels(call.operand(0)) && !has_odd_channels(y);
}

bool accepts_padded_convolution(const OpCall& call, llvm::ArrayRef<Type> results) { return accepts_padded(call, results, results[0]); }
bool accepts_padded_gradient(const OpCall& call, llvm::ArrayRef<Type> results) { return accepts_padded(call, results, call.operand(1)); }

constexpr int64_t padded_workspace = int64_t{32} << 20;  // cuDNN's own, which then pads nothing

int64_t padded_convolution_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return padded_channel_bytes(call.operand(0)) + padded_channel_bytes(call.operand(1)) + padded_workspace;
}

int64_t padded_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const Type dw(call.operand(0).dtype, results[0].shape);
  return padded_channel_bytes(call.operand(0)) + padded_channel_bytes(dw) + padded_workspace;
}

constexpr size_t attention_mask = 3, gradient_mask = 6;

bool accepts_attention(const OpCall& call, size_t mask) {
  const AttentionSizes n(call);
  const bool causal = call.attrs.get_int("causal");
  return is_one_of(call.operand(0).dtype, {DType::BF16, DType::F16}) && !call.has(mask) && call.attrs.get_float("dropout") == 0 &&
         n.depth % 8 == 0 && n.depth <= 128 && n.value_depth == n.depth && n.batch * n.rows * n.depth > 0 && n.columns > 0 &&
         (!causal || n.rows == n.columns);
}

bool accepts_forward(const OpCall& call, llvm::ArrayRef<Type>) { return accepts_attention(call, attention_mask); }
bool accepts_gradient(const OpCall& call, llvm::ArrayRef<Type>) { return accepts_attention(call, gradient_mask); }

constexpr int64_t slack = int64_t{1} << 20;  // cuDNN's own row counters and alignment

int64_t forward_workspace(const OpCall&, llvm::ArrayRef<Type>, const DeviceDescription&) { return slack; }

// What cuDNN 9 asks for: dq in f32 and sums of rows, on chips before Hopper dk and dv's share too, and with fewer
// key heads than query heads both at all query heads in 16 bits. Times round up to whole tiles of 128.
int64_t gradient_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = (n.rows + 127) / 128 * 128, columns = (n.columns + 127) / 128 * 128;
  int64_t bytes = 4 * n.batch * n.heads * rows * (device.compute_capability >= 90 ? n.depth + 1 : 2 * n.depth + 1);
  if (n.heads != n.kv_heads) bytes += 2 * 2 * n.batch * n.heads * columns * n.depth;
  return bytes + slack;
}

constexpr int64_t most_ordered_bytes = int64_t{256} << 20;

// In a fixed order cuDNN keeps all probabilities in 16 bits; the batch is cut in pieces so that they stay small.
int64_t ordered_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = (n.rows + 127) / 128 * 128, columns = (n.columns + 127) / 128 * 128;
  const int64_t whole = gradient_workspace(call, results, device) - slack + 2 * n.batch * n.heads * rows * columns;
  return std::max(whole / n.batch, std::min(whole, most_ordered_bytes)) + slack;
}

constexpr CudaCandidate candidates[] = {
    {"conv", "cudnn", accepts_convolution, convolution_workspace},
    {"conv_dx", "cudnn", accepts_convolution, convolution_workspace},
    {"conv_dw", "cudnn", accepts_convolution, weight_gradient_workspace},
    {"conv", "cudnn_padded", accepts_padded_convolution, padded_convolution_workspace},
    {"conv_dw", "cudnn_padded", accepts_padded_gradient, padded_gradient_workspace},
    {"conv_transpose", "cudnn", accepts_convolution, convolution_workspace},
    {"attention", "cudnn", accepts_forward, forward_workspace},
    {"attention_grad", "cudnn", accepts_gradient, gradient_workspace, /*any_order=*/true},
    {"attention_grad", "cudnn_ordered", accepts_gradient, ordered_gradient_workspace},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_library_candidates() { return candidates; }

}  // namespace plimsoll
