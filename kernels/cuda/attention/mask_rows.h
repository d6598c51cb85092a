#pragma once

// Masks whose rows do not end where a word of 16 bytes ends, which the copy engine does not bring: they are copied to
// rows that do.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace plimsoll::cuda {

// Elements of a copied row, each of so many bytes.
constexpr int64_t mask_pitch(int64_t columns, int64_t bytes) {
  const int64_t of_word = 16 / bytes;
  return (columns + of_word - 1) / of_word * of_word;
}

// Copies rows of `columns` elements of 2 or 4 bytes, one behind the other, to rows of mask_pitch; what is beyond the
// columns becomes 0.
[[nodiscard]] cudaError_t copy_mask_rows(void* to, const void* from, int64_t rows, int64_t columns, int64_t bytes,
                                         cudaStream_t stream);

}  // namespace plimsoll::cuda
