#include "runtime/cuda/float_types.h"

namespace plimsoll {
namespace {

// Elements are numbered in 31 bits; indices are the second result.
bool accepts_pool(const OpCall& call, llvm::ArrayRef<Type> results) {
  return computes_in_f32(call.operand(0).dtype) && call.operand(0).elements() <= INT32_MAX &&
         results[0].elements() <= INT32_MAX;
}

// The place of each maximum in its window is kept in a byte. Operand 0 is x or these places, operand 1 dy.
bool accepts_max_pool_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return computes_in_f32(call.operand(1).dtype) && results[0].elements() <= INT32_MAX &&
         call.operand(1).elements() <= INT32_MAX && element_count(call.attrs.get_ints("kernel")) < 255;
}

int64_t max_pool_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return call.operand(0).dtype == DType::U8 ? 0 : call.operand(1).elements();
}

constexpr CudaCandidate candidates[] = {
    {"max_pool", "windows", accepts_pool},
    {"max_pool_with_indices", "windows", accepts_pool},
    {"max_pool_grad", "windows", accepts_max_pool_grad, max_pool_grad_workspace},
    {"average_pool", "windows", accepts_pool},
    {"average_pool_grad", "windows", accepts_pool},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_pool_candidates() { return candidates; }

}  // namespace plimsoll
