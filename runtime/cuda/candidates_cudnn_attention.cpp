#include "ir/ops/attention/attention_sizes.h"
#include "runtime/cuda/candidates.h"

// What cuDNN is asked to do of attention: that of 16-bit floats without mask or dropout. Everything else stays with our
// own kernels.

namespace plimsoll {
namespace {

constexpr size_t attention_mask = 3, gradient_mask = 6;

bool accepts_attention(const OpCall& call, size_t mask) {
  const AttentionSizes n(call);
  const bool causal = call.attrs.get_int("causal");
  return is_16_bit_float(call.operand(0).dtype) && !call.has(mask) && call.attrs.get_float("dropout") == 0 &&
         n.depth % 8 == 0 && n.depth <= 128 && n.value_depth == n.depth && n.batch * n.rows * n.depth > 0 &&
         n.columns > 0 && (!causal || n.rows == n.columns);
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

constexpr int64_t max_ordered_bytes = int64_t{256} << 20;

// In a fixed order cuDNN keeps all probabilities in 16 bits; the batch is cut in pieces so that they stay small.
int64_t ordered_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = (n.rows + 127) / 128 * 128, columns = (n.columns + 127) / 128 * 128;
  const int64_t whole = gradient_workspace(call, results, device) - slack + 2 * n.batch * n.heads * rows * columns;
  return std::max(whole / n.batch, std::min(whole, max_ordered_bytes)) + slack;
}

constexpr CudaCandidate candidates[] = {
    {"attention", "cudnn", accepts_forward, forward_workspace},
    {"attention_grad", "cudnn", accepts_gradient, gradient_workspace, /*any_order=*/true},
    {"attention_grad", "cudnn_ordered", accepts_gradient, ordered_gradient_workspace},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_library_candidates() { return candidates; }

}  // namespace plimsoll
