#include "kernels/cuda/move/mark.h"

namespace plimsoll::cuda {
namespace {

__global__ void mark_kernel(volatile int32_t* word, int32_t place) {
  *word = place;
  __threadfence_system();
}

}  // namespace

cudaError_t mark_place(int32_t* word, int32_t place, cudaStream_t stream) {
  mark_kernel<<<1, 1, 0, stream>>>(word, place);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
