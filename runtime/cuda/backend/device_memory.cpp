#include "runtime/cuda/backend/device_memory.h"

#include "ir/support/units.h"

namespace plimsoll {

Status cuda_status(cudaError_t code, const llvm::Twine& what) {
  if (code == cudaSuccess) return Status::success();
  return system_error(what + ": " + cudaGetErrorName(code) + ", " + cudaGetErrorString(code));
}

Status out_of_device_memory(int64_t bytes, const llvm::Twine& what, llvm::StringRef name) {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  return system_error(what + " needs " + format_bytes(bytes) + " of device memory, " +
                      format_bytes(static_cast<int64_t>(free)) + " of " + format_bytes(static_cast<int64_t>(total)) +
                      " are free (" + name + ")");
}

Result<CudaMemory> CudaMemory::on_device(int64_t bytes, llvm::StringRef what) {
  void* at = nullptr;
  if (bytes == 0) return CudaMemory();
  if (cudaError_t code = cudaMalloc(&at, static_cast<size_t>(bytes)); code != cudaSuccess)
    return out_of_device_memory(bytes, what, cudaGetErrorName(code));
  return CudaMemory(at, bytes, [](void* memory) { cudaFree(memory); });
}

Result<CudaMemory> CudaMemory::pinned(int64_t bytes, llvm::StringRef what) {
  void* at = nullptr;
  if (bytes == 0) return CudaMemory();
  if (Status s = cuda_status(cudaMallocHost(&at, static_cast<size_t>(bytes)),
                             what + ": " + format_bytes(bytes) + " of pinned host memory"))
    return s;
  return CudaMemory(at, bytes, [](void* memory) { cudaFreeHost(memory); });
}

CudaMemory::~CudaMemory() {
  if (at_) release_(at_);
}

}  // namespace plimsoll
