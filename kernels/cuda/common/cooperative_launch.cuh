#pragma once

// Launches whose blocks wait for each other, so that all of them must have room at once.

#include <cuda_runtime.h>

#include <type_traits>

namespace plimsoll::cuda {

// `shared_bytes` may be more than kernels have without asking. An error where the card has no room for all blocks.
template <typename... Parameters>
cudaError_t launch_together(void (*kernel)(Parameters...), int64_t blocks, int threads, int shared_bytes,
                            cudaStream_t stream, std::type_identity_t<Parameters>... arguments) {
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      error != cudaSuccess)
    return error;
  cudaLaunchAttribute together;
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace plimsoll::cuda
