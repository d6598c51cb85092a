#pragma once

// How many blocks may wait for each other, which must all have room at once.

#include "kernels/cuda/common/card_attributes.h"

#include <algorithm>
#include <atomic>

namespace plimsoll::cuda {

// Multiprocessors that kernels of collectives hold until the other ranks have come. The process sets it before it
// launches anything.
inline std::atomic<int> multiprocessors_of_collectives{0};

// Multiprocessors for blocks that wait for each other. On more, they would begin only once a collective beside which
// they run is through, and with it wait for the other ranks.
[[nodiscard]] inline cudaError_t count_multiprocessors_together(int& count) {
  if (cudaError_t error = count_multiprocessors(count); error != cudaSuccess) return error;
  count = std::max(count - multiprocessors_of_collectives, 1);
  return cudaSuccess;
}

}  // namespace plimsoll::cuda
