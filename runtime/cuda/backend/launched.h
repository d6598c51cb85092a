#pragma once

// What a launcher answers: which op of what shape a kernel refused.

#include "runtime/cuda/backend/launcher.h"

#include <cuda_runtime_api.h>

namespace plimsoll {

inline Status launched(const CudaCall& k, cudaError_t error) {
  if (error == cudaSuccess) return Status::success();
  const std::string type = k.results.empty() ? std::string() : " of " + to_string(k.results[0].type);
  return model_error(k.op.name + type + ": " + cudaGetErrorString(error));
}

inline int element_bytes(const CudaCall& k) { return static_cast<int>(dtype_bytes(k.results[0].type.dtype)); }

}  // namespace plimsoll
