#pragma once

// Lets the host see how far a stream has come while a graph runs.

#include <cuda_runtime_api.h>
#include <cstdint>

namespace plimsoll::cuda {

// *word = place once everything before it on the stream is done. `word` is pinned host memory.
[[nodiscard]] cudaError_t mark_place(int32_t* word, int32_t place, cudaStream_t stream);

}  // namespace plimsoll::cuda
