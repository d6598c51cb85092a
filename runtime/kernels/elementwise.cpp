#include "runtime/kernels/elementwise.h"

// CUDA kernels take every dtype but F8. Operands of one shape are one loop, whatever their rank.

namespace plimsoll {
namespace {

bool accepts_add_n(const OpCall& call, llvm::ArrayRef<Type> results) {
  return call.count() <= max_add_n_terms && has_no_f8(call, results);
}

constexpr CudaCandidate candidates[] = {
#define PLIMSOLL_UNARY(op, Name, formula) {op_##op, "vectors", has_no_f8},
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) {op_##op, "vectors", has_no_f8},
#define PLIMSOLL_BINARY(op, Name, formula) {op_##op, "broadcast", ranks_fit_without_f8},
#include "kernels/elementwise.def"
    {op_bitwise_not, "vectors", has_no_f8},
    {op_gelu, "vectors", has_no_f8},
    {op_gelu_grad, "vectors", has_no_f8},
    {op_clip, "vectors", has_no_f8},
    {op_cast, "vectors", has_no_f8},
    {op_is_nan, "vectors", has_no_f8},
    {op_is_inf, "vectors", has_no_f8},
    {op_not, "vectors", has_no_f8},
    {op_dropout, "vectors", has_no_f8},
    {op_fused, "generated", accepts_everything},
    {op_random_uniform, "vectors", has_no_f8},
    {op_random_normal, "vectors", has_no_f8},
    {op_mod, "broadcast", ranks_fit_without_f8},
    {op_bit_shift, "broadcast", ranks_fit_without_f8},
    {op_where, "broadcast", ranks_fit},
    {op_add_n, "vectors", accepts_add_n},
    {op_copy, "bytes", accepts_everything},
    {op_identity, "bytes", accepts_everything},
    {op_reshape, "bytes", accepts_everything},
    {op_to_host, "copy_engine", accepts_everything},
    {op_to_device, "copy_engine", accepts_everything},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> elementwise_candidates() { return candidates; }

}  // namespace plimsoll
