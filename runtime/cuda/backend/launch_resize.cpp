#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

llvm::ArrayRef<CudaLauncher> cuda_resize_launchers() { return {}; }

}  // namespace plimsoll
