#include "runtime/cuda/backend/libraries.h"

#include "runtime/cuda/backend/device_memory.h"

#include <cudnn_graph.h>

namespace plimsoll {

Status CudaLibraries::create(bool tf32) {
  tf32_ = tf32;
  int device = 0;
  if (Status s = cuda_status(cudaGetDevice(&device), "device")) return s;
  if (Status s = cuda_status(cudaGetDeviceProperties(&card_, device), "device properties")) return s;
  cublasStatus_t status = cublasLtCreate(&lt_);
  if (status == CUBLAS_STATUS_SUCCESS) return Status::success();
  return system_error(llvm::Twine("cuBLASLt does not start: ") + cublasLtGetStatusString(status));
}

Result<CudnnCard> CudaLibraries::cudnn() {
  if (cudnn_card_.handle || !cudnn_card_.description.empty()) return cudnn_card_;
  cudnnStatus_t status = cudnnCreate(&cudnn_card_.handle);
  if (status == CUDNN_STATUS_SUCCESS) return cudnn_card_;
  return system_error(llvm::Twine("cuDNN does not start: ") + cudnnGetErrorString(status));
}

CudaLibraries::~CudaLibraries() {
  if (lt_) cublasLtDestroy(lt_);
  cudnn_plans_ = {};  // before what they were made with
  if (cudnn_card_.handle) cudnnDestroy(cudnn_card_.handle);
}

}  // namespace plimsoll
