#include "runtime/cuda/backend/launcher.h"

namespace plimsoll {

std::vector<const CudaLauncher*> all_cuda_launchers() {
  std::vector<const CudaLauncher*> all;
  for (llvm::ArrayRef<CudaLauncher> family :
       {cuda_convolution_launchers(), cuda_library_launchers(), cuda_product_launchers(), cuda_elementwise_launchers(),
        cuda_move_launchers(), cuda_index_launchers(), cuda_reduce_launchers(), cuda_norm_launchers(),
        cuda_loss_launchers(), cuda_attention_launchers(), cuda_update_launchers(), cuda_pool_launchers(),
        cuda_resize_launchers()})
    for (const CudaLauncher& launcher : family) all.push_back(&launcher);
  return all;
}

}  // namespace plimsoll
