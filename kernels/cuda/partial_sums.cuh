#pragma once

// The second stage of sums over rows: partials [count, width], made by as many blocks, are added in their order.

#include "kernels/cuda/rows.cuh"

namespace plimsoll::cuda {

inline constexpr int partial_columns = 32, partial_rows = 32;

// out[c] = sum of partials[:, c]; a block of partial_rows * partial_columns threads for partial_columns columns.
template <typename Out>
__global__ void __launch_bounds__(partial_rows* partial_columns)
    add_partials_kernel(Out* out, const float* partials, int64_t count, int64_t width) {
  __shared__ float sums[partial_rows][partial_columns + 1];
  const int64_t column = int64_t{blockIdx.x} * partial_columns + threadIdx.x;
  float sum = 0;
  if (column < width)
    for (int64_t r = threadIdx.y; r < count; r += partial_rows) sum += partials[r * width + column];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // Turned over, so that a warp holds the parts of one column.
  const float total = warp_reduce(sums[threadIdx.x][threadIdx.y], Add());
  const int64_t mine = int64_t{blockIdx.x} * partial_columns + threadIdx.y;
  if (threadIdx.x == 0 && mine < width) out[mine] = narrow<Out>(total);
}

template <typename Out>
cudaError_t add_partials(Out* out, const float* partials, int64_t count, int64_t width, cudaStream_t stream) {
  if (width == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(divide_up(width, partial_columns));
  add_partials_kernel<<<blocks, dim3(partial_columns, partial_rows), 0, stream>>>(out, partials, count, width);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
