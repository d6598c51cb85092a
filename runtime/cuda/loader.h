#pragma once

// Finds and opens the CUDA backend and the NVIDIA libraries it needs.

#include "runtime/cuda/backend_abi.h"

namespace plimsoll {

// Looks for cuBLASLt, cuDNN and NVRTC in PLIMSOLL_CUDA_PATH, where the system's loader looks, in the toolkit, and in
// the nvidia/*/lib folders of Python's packages. The error says in one line what is missing.
// Without `to_run` the driver may be missing: enough to ask which kernels there are.
Result<std::unique_ptr<CudaBackend>> load_cuda_backend(bool to_run = true);

// Makes nvJPEG known to the process, so that a backend finds it by its name. Looks in the same places, and beside
// torchvision, which brings its own. Whether it was found the backend says.
void open_nvjpeg();

}  // namespace plimsoll
