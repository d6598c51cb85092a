#pragma once

// The second stage of reductions: partials [count, width], made by as many blocks, are combined in a fixed order.

#include "kernels/cuda/common/rows.cuh"

namespace plimsoll::cuda {

inline constexpr int combine_threads = 1024;

// Columns a block combines: 8, which are a sector of memory, and more where there are too few partials for its threads.
inline int combined_columns(int64_t count) {
  int across = 8;
  while (across < 256 && count * across < combine_threads) across *= 2;
  return across;
}

inline unsigned combining_blocks(int64_t count, int64_t width) {
  return static_cast<unsigned>(divide_up(width, combined_columns(count)));
}

// Calls store(column, total) for the columns of this block, one of combine_threads threads. A thread combines every
// (combine_threads / across)-th partial of a column, then a warp what these threads have.
template <typename Combine, typename Store>
__device__ void combine_partials(const float* partials, int64_t count, int64_t width, int across, Combine combine,
                                 float empty, Store store) {
  __shared__ float of_threads[combine_threads];
  const int thread = static_cast<int>(threadIdx.x), down = combine_threads / across;
  const int64_t first = int64_t{blockIdx.x} * across, mine = first + thread % across;
  float total = empty;
  if (mine < width)
#pragma unroll 4
    for (int64_t part = thread / across; part < count; part += down)
      total = combine(total, partials[part * width + mine]);
  of_threads[thread] = total;
  __syncthreads();
  const int lane = thread % warp_threads;
  for (int column = thread / warp_threads; column < across; column += combine_threads / warp_threads) {
    total = empty;
    for (int row = lane; row < down; row += warp_threads) total = combine(total, of_threads[row * across + column]);
    total = warp_reduce(total, combine);
    if (lane == 0 && first + column < width) store(first + column, total);
  }
}

}  // namespace plimsoll::cuda
