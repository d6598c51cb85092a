#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

llvm::ArrayRef<CudaLauncher> cuda_loss_launchers() { return {}; }

}  // namespace plimsoll
