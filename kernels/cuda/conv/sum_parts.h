#pragma once

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace plimsoll::cuda {

// sums[i] = the sum over the parts of partial[part][i], in a fixed order; sums in `type`, f32 or a 16-bit float, which
// are rounded once. `partial` and `sums` begin at borders of 16 bytes. The launch that writes the parts comes right
// before and may let this one begin early (let_next_launch_begin).
[[nodiscard]] cudaError_t sum_parts(Scalar type, void* sums, const float* partial, int64_t parts, int64_t count,
                                    cudaStream_t stream);

}  // namespace plimsoll::cuda
