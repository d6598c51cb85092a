#include "runtime/cuda/candidates.h"

namespace plimsoll {

llvm::ArrayRef<CudaCandidate> cuda_loss_candidates() { return {}; }

}  // namespace plimsoll
