#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

llvm::ArrayRef<CudaLauncher> cuda_norm_launchers() { return {}; }

}  // namespace plimsoll
