#pragma once

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// An attribute of the card that the thread launches on; `value` stays as it is where the card does not say.
[[nodiscard]] inline cudaError_t read_card_attribute(int& value, cudaDeviceAttr attribute) {
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&value, attribute, device);
}

// Of its compute capability; 0 where it does not say.
[[nodiscard]] inline int capability_major() {
  int major = 0;
  return read_card_attribute(major, cudaDevAttrComputeCapabilityMajor) == cudaSuccess ? major : 0;
}
[[nodiscard]] inline bool is_hopper() { return capability_major() == 9; }

[[nodiscard]] inline cudaError_t count_multiprocessors(int& count) {
  return read_card_attribute(count, cudaDevAttrMultiProcessorCount);
}

}  // namespace plimsoll::cuda
