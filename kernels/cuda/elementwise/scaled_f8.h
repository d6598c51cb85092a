#pragma once

// 8-bit floats with a scale for each row, block or tile of a matrix.

#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

// x [rows, columns] of f32, bf16 or f16, over scales as f8_scale has them: codes as x lies and its transpose, each with
// scales of its own. Either may be null. Numbers behind the largest code become it. Columns are a multiple of 16; with
// `turned` rows are too.
struct ScaledF8 {
  const void* x;
  Scalar x_type;
  int64_t rows, columns;
  Scalar type;
  uint8_t *codes, *turned;
  float *scales, *turned_scales;
};

// A scale for each row: scales [rows], turned_scales [columns]. Workspace: a word for each column, with `turned` alone.
[[nodiscard]] cudaError_t rows_to_f8(const ScaledF8& call, uint32_t* workspace, cudaStream_t stream);

// A scale for each 128 numbers of a row, by which rows and columns are a multiple of 128: scales [columns / 128, rows],
// turned_scales [rows / 128, columns].
[[nodiscard]] cudaError_t blocks_to_f8(const ScaledF8& call, cudaStream_t stream);

// A scale for each 128 rows of 128 numbers: scales [rows / 128, columns / 128], where ones fill a row up to a multiple
// of 4, and turned_scales their transpose, filled up as well.
[[nodiscard]] cudaError_t tiles_to_f8(const ScaledF8& call, cudaStream_t stream);

}  // namespace plimsoll::cuda
