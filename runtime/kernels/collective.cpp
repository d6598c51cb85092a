#include "ir/support/align.h"
#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {
namespace {

constexpr int64_t workspace_alignment = 256;

bool can_sum(const OpCall& call, llvm::ArrayRef<Type>) {
  const DType dtype = call["x"].dtype;
  return dtype == DType::F32 || dtype == DType::F64 || dtype == DType::F16 || dtype == DType::BF16 ||
         dtype == DType::I32 || dtype == DType::I64;
}

int64_t padded_elements(const OpCall& call, int64_t piece) { return piece * call.get_int("ranks"); }

bool sums_even_pieces(const OpCall& call, llvm::ArrayRef<Type> results) {
  return can_sum(call, results) && padded_elements(call, results[0].elements()) == call["x"].elements();
}

bool gathers_even_pieces(const OpCall& call, llvm::ArrayRef<Type> results) {
  return padded_elements(call, call["x"].elements()) == results[0].elements();
}

int64_t padded_bytes(const OpCall& call, int64_t piece, DType dtype) {
  return align_up(padded_elements(call, piece) * dtype_bytes(dtype), workspace_alignment);
}

int64_t padded_sum_bytes(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return padded_bytes(call, results[0].elements(), results[0].dtype);
}

int64_t padded_gather_bytes(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return padded_bytes(call, call["x"].elements(), results[0].dtype);
}

// A dimension with nothing but ones ahead of it: its parts are runs of memory.
bool is_outermost(const OpCall& call, llvm::StringRef attr) {
  return element_count(llvm::ArrayRef<int64_t>(call["x"].shape).take_front(call.get_int(attr))) == 1;
}

bool exchanges_runs(const OpCall& call, llvm::ArrayRef<Type>) {
  return is_outermost(call, "split") && is_outermost(call, "join");
}

int64_t packed_exchange_bytes(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return 2 * align_to_tensor(call["x"].bytes());
}

// Where parts are no runs of memory, they are packed into one half of the workspace and come in the other.
// Where the pieces of all ranks are longer than the whole, a padded copy of it is the workspace.
constexpr CudaCandidate collective_table[] = {
    {op_reduce_all, "nccl", can_sum},
    {op_reduce_pieces, "nccl", sums_even_pieces},
    {op_reduce_pieces, "nccl_padded", can_sum, padded_sum_bytes},
    {op_gather_pieces, "nccl", gathers_even_pieces},
    {op_gather_pieces, "nccl_padded", accepts_everything, padded_gather_bytes},
    {op_take_piece, "copy", accepts_everything},
    {op_place_piece, "copy", accepts_everything},
    {op_broadcast, "nccl", accepts_everything},
    {op_reduce_root, "nccl", can_sum},
    {op_all_to_all, "nccl", exchanges_runs},
    {op_all_to_all, "nccl_packed", accepts_everything, packed_exchange_bytes},
    {op_send, "nccl", accepts_everything},
    {op_receive, "nccl", accepts_everything},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> collective_candidates() { return collective_table; }

}  // namespace plimsoll
