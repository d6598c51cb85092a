#pragma once

// A matrix and parts of its columns, each a matrix of its own: elements of 1, 2, 4 or 8 bytes go from one to the other,
// bit for bit, in one launch.

#include <cuda_runtime_api.h>
#include <cstdint>

namespace plimsoll::cuda {

inline constexpr int max_parts = 64;  // as many as fit in a kernel's arguments

struct Part {
  void* data;              // [rows, columns]
  int64_t first, columns;  // where it begins in the whole, and how many columns it has
};

// In elements.
struct Parts {
  void* whole;  // [rows, pitch]
  int64_t rows, pitch;
  int count = 0;
  Part parts[max_parts];
};

[[nodiscard]] cudaError_t split_parts(const Parts& parts, int element_bytes, cudaStream_t stream);
[[nodiscard]] cudaError_t join_parts(const Parts& parts, int element_bytes, cudaStream_t stream);

}  // namespace plimsoll::cuda
