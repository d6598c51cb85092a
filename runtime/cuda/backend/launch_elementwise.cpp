#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

llvm::ArrayRef<CudaLauncher> cuda_elementwise_launchers() { return {}; }

}  // namespace plimsoll
