#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

llvm::ArrayRef<CudaLauncher> cuda_reduce_launchers() { return {}; }

}  // namespace plimsoll
