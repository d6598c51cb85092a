#include "runtime/cuda/backend/prepared_cudnn.h"

#include "ir/support/units.h"

#include <cudnn_graph.h>

namespace plimsoll {

Status PreparedCudnn::run(const CudaCall& k, llvm::ArrayRef<const void*> tensors) {
  if (cudnnSetStream(cudnn, k.stream) != CUDNN_STATUS_SUCCESS) return system_error("cuDNN: stream refused");
  return plan->run(cudnn, tensors, static_cast<std::byte*>(k.workspace) + own_bytes);
}

Status workspace_too_small(const CudaCall& k, int64_t asked) {
  return system_error("cuDNN asks for " + format_bytes(asked) + " of workspace for " + k.call.op.name +
                      ", the plan gives it " + format_bytes(k.workspace_bytes));
}

}  // namespace plimsoll
