#pragma once

// Transposes one of whose two dimensions is short, such as the channels of an image.

#include "kernels/strides.h"

#include <cuda_runtime_api.h>

#include <optional>

namespace plimsoll::cuda {

// to[...] = from[...] over a collapsed nest as in copy_strided, which is a transpose of 2 to 4 planes of long runs into
// rows of as many elements, or of such rows into planes; both sides at multiples of 16 bytes. None where the nest is
// nothing like that.
[[nodiscard]] std::optional<cudaError_t> transpose_short_side(const LoopNest<2>& nest, void* to, const void* from,
                                                              int element_bytes, cudaStream_t stream);

}  // namespace plimsoll::cuda
