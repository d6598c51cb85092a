#include "runtime/kernels/pool.h"

namespace plimsoll {

namespace {

// Elements are numbered in 31 bits; indices are the second result.
bool accepts_pool(const OpCall& call, llvm::ArrayRef<Type> results) {
  return computes_in_f32(call.operand(0).dtype) && call.operand(0).elements() <= INT32_MAX &&
         results[0].elements() <= INT32_MAX;
}

// The place of each maximum in its window is kept in a byte; operand x may be these places.
bool accepts_max_pool_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return computes_in_f32(call["dy"].dtype) && results[0].elements() <= INT32_MAX &&
         call["dy"].elements() <= INT32_MAX && element_count(call.get_ints("kernel")) < 255;
}

int64_t max_pool_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return call["x"].dtype == DType::U8 ? 0 : call["dy"].elements();
}

constexpr CudaCandidate pool_table[] = {
    {op_max_pool, "windows", accepts_pool},
    {op_max_pool_with_indices, "windows", accepts_pool},
    {op_max_pool_grad, "windows", accepts_max_pool_grad, max_pool_grad_workspace},
    {op_average_pool, "windows", accepts_pool},
    {op_average_pool_grad, "windows", accepts_pool},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> pool_candidates() { return pool_table; }

}  // namespace plimsoll
