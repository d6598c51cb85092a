#include "runtime/kernels/attention.h"

namespace plimsoll {
namespace {

template <size_t mask>
bool accepts_flash(const OpCall& call, llvm::ArrayRef<Type>) {
  const AttentionSizes n(call);
  if (call.has(mask) && call.operand(mask).dtype != DType::Bool && !computes_in_f32(call.operand(mask).dtype))
    return false;
  return computes_in_f32(call.operand(0).dtype) && n.depth <= max_flash_depth && n.value_depth <= max_flash_depth;
}

int64_t flash_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return row_products_bytes(call);
}

// ---- Our own on the matrix units: 16-bit floats ----

template <size_t mask>
bool accepts_mma(const OpCall& call, llvm::ArrayRef<Type>) {
  const AttentionSizes n(call);
  const DType dtype = call.operand(0).dtype;
  if (call.has(mask)) {
    const DType type = call.operand(mask).dtype;
    if (type != DType::Bool && type != DType::F32 && type != dtype) return false;
  }
  return is_16_bit_float(dtype) && n.depth <= max_flash_depth && n.value_depth <= max_flash_depth;
}

int64_t kept_workspace(const OpCall& call) {
  const AttentionSizes n(call);
  return call.attrs.get_float("dropout") > 0 ? kept_bits_bytes(n, groups_at_a_time(n)) : 0;
}

int64_t mma_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return kept_workspace(call);
}
int64_t mma_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return row_products_bytes(call) + kept_workspace(call);
}

bool accepts_rotary(const OpCall& call, llvm::ArrayRef<Type>) {
  const DType x = call.operand(0).dtype, table = call.operand(1).dtype;
  return computes_in_f32(x) && (table == DType::F32 || table == x) && call.operand(2).dtype == table;
}

// ---- cuDNN: 16-bit floats without mask or dropout ----

template <size_t mask>
bool accepts_cudnn(const OpCall& call, llvm::ArrayRef<Type>) {
  const AttentionSizes n(call);
  const bool causal = call.attrs.get_int("causal");
  return is_16_bit_float(call.operand(0).dtype) && !call.has(mask) && call.attrs.get_float("dropout") == 0 &&
         n.depth % 8 == 0 && n.depth <= 128 && n.value_depth == n.depth && n.batch * n.rows * n.depth > 0 &&
         n.columns > 0 && (!causal || n.rows == n.columns);
}

constexpr int64_t slack = int64_t{1} << 20;  // cuDNN's own row counters and alignment

int64_t cudnn_workspace(const OpCall&, llvm::ArrayRef<Type>, const DeviceDescription&) { return slack; }

// cuDNN 9 asks for dq in f32 and sums of rows, on chips before Hopper dk and dv's share too, and with fewer
// key heads than query heads both at all query heads in 16 bits. Times round up to whole tiles of 128.
int64_t cudnn_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = (n.rows + 127) / 128 * 128, columns = (n.columns + 127) / 128 * 128;
  int64_t bytes = 4 * n.batch * n.heads * rows * (device.compute_capability >= 90 ? n.depth + 1 : 2 * n.depth + 1);
  if (n.heads != n.kv_heads) bytes += 2 * 2 * n.batch * n.heads * columns * n.depth;
  return bytes + slack;
}

constexpr int64_t max_ordered_bytes = int64_t{256} << 20;

// In a fixed order cuDNN keeps all probabilities in 16 bits; the batch is cut in pieces so that they stay small.
int64_t cudnn_ordered_grad_workspace(const OpCall& call, llvm::ArrayRef<Type> results,
                                     const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = (n.rows + 127) / 128 * 128, columns = (n.columns + 127) / 128 * 128;
  const int64_t whole = cudnn_grad_workspace(call, results, device) - slack + 2 * n.batch * n.heads * rows * columns;
  return std::max(whole / n.batch, std::min(whole, max_ordered_bytes)) + slack;
}

constexpr int64_t max_kept_bits_bytes = int64_t{32} << 20;

// cuDNN's first: where it accepts a call it is the faster one.
constexpr CudaCandidate candidates[] = {
    {op_attention, "cudnn", accepts_cudnn<attention_mask>, cudnn_workspace},
    {op_attention_grad, "cudnn", accepts_cudnn<attention_grad_mask>, cudnn_grad_workspace, /*any_order=*/true},
    {op_attention_grad, "cudnn_ordered", accepts_cudnn<attention_grad_mask>, cudnn_ordered_grad_workspace},
    {op_attention, "mma", accepts_mma<attention_mask>, mma_workspace},
    {op_attention_grad, "mma", accepts_mma<attention_grad_mask>, mma_grad_workspace},
    {op_attention, "flash", accepts_flash<attention_mask>},
    {op_attention_grad, "flash", accepts_flash<attention_grad_mask>, flash_grad_workspace},
    {op_rotary, "pairs", accepts_rotary},
};

}  // namespace

int64_t groups_at_a_time(const AttentionSizes& n) {
  return std::clamp<int64_t>(max_kept_bits_bytes / std::max<int64_t>(kept_bits_bytes(n, 1), 1), 1,
                             std::max<int64_t>(n.batch * n.kv_heads, 1));
}

int64_t kept_bits_bytes(const AttentionSizes& n, int64_t groups) {
  return groups * (n.heads / n.kv_heads) * n.rows * ((n.columns + 31) / 32) * static_cast<int64_t>(sizeof(uint32_t));
}

llvm::ArrayRef<CudaCandidate> attention_candidates() { return candidates; }

}  // namespace plimsoll
