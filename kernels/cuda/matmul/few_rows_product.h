#pragma once

// Products of many small matrices by few rows each, of which memory bounds the time: every matrix is read or written
// once. Libraries have tiles of 64 rows and more, of which such rows fill little.

#include "kernels/cuda/matmul/few_rows_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// All are of `type`, a 16-bit float; fits(sizes) holds.
[[nodiscard]] cudaError_t few_rows_product(Scalar type, void* y, const void* a, const void* b, const FewRows& sizes,
                                           cudaStream_t stream);

}  // namespace plimsoll::cuda
