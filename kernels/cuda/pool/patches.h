#pragma once

#include "kernels/cuda/pool/pool.h"

namespace plimsoll::cuda {

// Patches y of images x and back; `in` of the shape is x and `out` the patches' positions. Patches are
// [batch, channels, taps, out...], or [batch, out..., taps, channels] with channels last.
[[nodiscard]] cudaError_t unfold(const PoolShape& shape, Scalar type, void* y, const void* x, cudaStream_t stream);
// Each element of x adds what patches have of it in f32, in the order of the patches.
[[nodiscard]] cudaError_t fold(const PoolShape& shape, Scalar type, void* x, const void* y, cudaStream_t stream);

}  // namespace plimsoll::cuda
