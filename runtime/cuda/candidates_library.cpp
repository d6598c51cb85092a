#include "runtime/cuda/candidates.h"

namespace plimsoll {

llvm::ArrayRef<CudaCandidate> cuda_library_candidates() { return {}; }

}  // namespace plimsoll
