#pragma once

// Launches that may begin while the one before them ends (Hopper and newer): their blocks take the room that its blocks
// leave, and what stands before their wait runs beside it. On other cards such a launch is like any other.

#include "kernels/cuda/common/card_attributes.h"

#include <cuda_runtime.h>

#include <type_traits>

namespace plimsoll::cuda {

// In the launch before: what it writes is seen behind the wait, wherever this stands.
__device__ inline void let_next_launch_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <typename... Parameters>
cudaError_t launch_early(void (*kernel)(Parameters...), dim3 grid, unsigned threads, cudaStream_t stream,
                         std::type_identity_t<Parameters>... arguments) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = capability_major() >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace plimsoll::cuda
