#pragma once

// Permutations of dimensions too short for a tile of two of them.

#include "kernels/strides.h"

#include <cuda_runtime_api.h>

#include <optional>

namespace plimsoll::cuda {

// to[...] = from[...] over a collapsed nest as in copy_strided, by tiles as in slab_tile. None where the nest has none,
// or where no words of a side are in one piece.
[[nodiscard]] std::optional<cudaError_t> permute_slabs(const LoopNest<2>& nest, void* to, const void* from,
                                                       int unit_bytes, cudaStream_t stream);

}  // namespace plimsoll::cuda
