#pragma once

// Ops that treat elements by their position or their order along an axis; tensors are [outer, length, inner] around
// it. Plain kernels: none of these is large in a training step. F8 is served where elements only move.

#include "kernels/cuda/index/index.h"

namespace plimsoll::cuda {

enum class ScanEnds : uint8_t { Inclusive, Exclusive };
enum class ScanStart : uint8_t { First, Last };

// Running sums, in double or 64-bit integers.
[[nodiscard]] cudaError_t running_sums(Scalar type, void* y, const void* x, const AxisShape& axis, ScanEnds ends,
                                       ScanStart start, cudaStream_t stream);
// The same of few long lines, which blocks share. y lies apart from x. Workspace: scan_parts_workspace_bytes.
[[nodiscard]] cudaError_t running_sums_by_parts(Scalar type, void* y, const void* x, const AxisShape& axis,
                                                ScanEnds ends, ScanStart start, void* workspace, cudaStream_t stream);

enum class Triangle : uint8_t { Lower, Upper };

// y = x where column - row >= k (upper) or <= k (lower), else 0; x [planes, rows, columns].
[[nodiscard]] cudaError_t triangular(Triangle triangle, int64_t k, void* y, const void* x, int64_t planes, int64_t rows,
                                     int64_t columns, int element_bytes, cudaStream_t stream);

// The first lengths[b] elements along the time axis in reverse. An axis has a size and a stride in elements; `run`
// consecutive elements share batch and time.
struct Sequences {
  Indices lengths;
  int64_t batch_size, batch_stride, time_size, time_stride, run;
};
[[nodiscard]] cudaError_t reverse_sequences(const Sequences& shape, void* y, const void* x, int64_t n,
                                            int element_bytes, cudaStream_t stream);

enum class Extreme : uint8_t { Largest, Smallest };
enum class Ties : uint8_t { First, Last };

// The index of the extreme along the axis; NaN counts as the extreme. y [outer, inner].
[[nodiscard]] cudaError_t arg_extreme(Extreme extreme, Ties ties, Scalar type, int64_t* y, const void* x,
                                      const AxisShape& axis, cudaStream_t stream);

// The k first of the order along the axis and their indices; values and indices [outer, k, inner]. Reads each line k
// times, with a warp or, where lines are short, with one thread.
enum class LineThreads : uint8_t { One = 1, Warp = 32 };
[[nodiscard]] cudaError_t top_k(LineThreads threads, Extreme extreme, int64_t k, Scalar type, void* values,
                                int64_t* indices, const void* x, const AxisShape& axis, cudaStream_t stream);

// The same as top_k, of f32, f16 and bf16. Reads each line once, and what it returns again.
[[nodiscard]] cudaError_t top_k_sorted(Extreme extreme, int64_t k, Scalar type, void* values, int64_t* indices,
                                       const void* x, const AxisShape& axis, cudaStream_t stream);

}  // namespace plimsoll::cuda
