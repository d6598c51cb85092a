#pragma once

#include "kernels/cuda/common/partial_sums.cuh"

namespace plimsoll::cuda {

// sums[i] = the sum over the parts of partial[part][i], in a fixed order.
template <typename To>
__global__ void __launch_bounds__(combine_threads)
    sum_parts_kernel(To* sums, const float* partial, int64_t parts, int64_t count, int across) {
  combine_partials(partial, parts, count, across, Add(), 0.0f,
                   [&](int64_t at, float total) { sums[at] = narrow<To>(total); });
}

// The same for few parts: a thread has every fourth part of a column, with some of them under way at once, and blocks
// are small enough that all are on the card together.
inline constexpr int few_parts = 256, few_rows = 4, few_columns = 64;

template <typename To>
__global__ void __launch_bounds__(few_rows* few_columns)
    sum_few_parts_kernel(To* sums, const float* partial, int parts, int64_t count) {
  __shared__ float of_rows[few_rows][few_columns];
  const int column = static_cast<int>(threadIdx.x) % few_columns, row = static_cast<int>(threadIdx.x) / few_columns;
  const int64_t at = int64_t{blockIdx.x} * few_columns + column;
  float total = 0;
  if (at < count)
#pragma unroll 8
    for (int part = row; part < parts; part += few_rows) total += partial[part * count + at];
  of_rows[row][column] = total;
  __syncthreads();
  if (row != 0 || at >= count) return;
#pragma unroll
  for (int i = 1; i < few_rows; ++i) total += of_rows[i][column];
  sums[at] = narrow<To>(total);
}

template <typename To>
cudaError_t sum_parts(To* sums, const float* partial, int64_t parts, int64_t count, cudaStream_t stream) {
  if (parts <= few_parts) {
    sum_few_parts_kernel<<<static_cast<unsigned>(divide_up(count, few_columns)), few_rows * few_columns, 0, stream>>>(
        sums, partial, static_cast<int>(parts), count);
    return cudaGetLastError();
  }
  sum_parts_kernel<<<combining_blocks(parts, count), combine_threads, 0, stream>>>(sums, partial, parts, count,
                                                                                   combined_columns(parts));
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
