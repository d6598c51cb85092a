#pragma once

// Rotary position embedding (Su et al. 2021) of x [rows, heads, depth]: pairs of each head's first 2 * pairs elements
// are turned by the angles cos, sin [table_rows, pairs], row r by those of r % table_rows; heads from `turned` on stay
// as they are. Tables are f32 or of x's type. y may be x.

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

struct RotaryCall {
  void* y;
  const void *x, *cos, *sin;
  Scalar type, table_type;
  int64_t rows, heads, turned, depth, pairs, table_rows;
  bool interleaved;  // pairs (2i, 2i + 1) instead of (i, i + pairs)
  bool inverse;      // turns back
};
[[nodiscard]] cudaError_t rotary(const RotaryCall& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
