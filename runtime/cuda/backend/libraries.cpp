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

Result<cudnnContext*> CudaLibraries::cudnn() {
  if (cudnn_) return cudnn_;
  cudnnStatus_t status = cudnnCreate(&cudnn_);
  if (status == CUDNN_STATUS_SUCCESS) return cudnn_;
  return system_error(llvm::Twine("cuDNN does not start: ") + cudnnGetErrorString(status));
}

CudaLibraries::~CudaLibraries() {
  if (lt_) cublasLtDestroy(lt_);
  if (cudnn_) cudnnDestroy(cudnn_);
}

}  // namespace plimsoll
