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

template <typename To>
cudaError_t sum_parts(To* sums, const float* partial, int64_t parts, int64_t count, cudaStream_t stream) {
  sum_parts_kernel<<<combining_blocks(parts, count), combine_threads, 0, stream>>>(sums, partial, parts, count,
                                                                                   combined_columns(parts));
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
