#include "runtime/cuda/accepts.h"

// Data movement takes elements of any dtype.

namespace plimsoll {
namespace {

// Every dimension becomes two.
bool accepts_tile(const OpCall&, llvm::ArrayRef<Type> results) { return 2 * results[0].rank() <= max_rank; }

bool accepts_pad_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return ranks_fit_nests(call, results) && has_no_f8(call, results);
}

constexpr CudaCandidate candidates[] = {
    {"transpose", "tiled", ranks_fit_nests},     {"expand", "strided_copy", ranks_fit_nests},
    {"tile", "strided_copy", accepts_tile},      {"slice", "strided_copy", ranks_fit_nests},
    {"slice_grad", "one_pass", ranks_fit_nests}, {"split", "strided_copy", ranks_fit_nests},
    {"concat", "strided_copy", ranks_fit_nests}, {"pad", "one_pass", ranks_fit_nests},
    {"pad_grad", "repeats", accepts_pad_grad},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_move_candidates() { return candidates; }

}  // namespace plimsoll
