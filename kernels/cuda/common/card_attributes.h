#pragma once

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// An attribute of the card that the thread launches on; `value` stays as it is where the card does not say.
[[nodiscard]] inline cudaError_t read_card_attribute(int& value, cudaDeviceAttr attribute) {
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&value, attribute, device);
}

[[nodiscard]] inline cudaError_t count_multiprocessors(int& count) {
  return read_card_attribute(count, cudaDevAttrMultiProcessorCount);
}

}  // namespace plimsoll::cuda
