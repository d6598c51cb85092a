#pragma once

// What kernels of small windows share whose tiles the copy engine brings, and which lay results over them.

#include "kernels/cuda/attention/attention_windows.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/short_boxes.cuh"
#include "kernels/cuda/common/warpgroup.cuh"

namespace plimsoll::cuda {

// Clears what no window has of a tile, rows from `rows` on, which no copy writes.
__device__ inline void clear_rest(unsigned char* tile, int rows) {
  constexpr int words = window_row_bytes / 16;
#pragma unroll 1
  for (int i = rows * words + static_cast<int>(threadIdx.x); i < max_window * words; i += window_threads)
    reinterpret_cast<uint4*>(tile)[i] = uint4{};
}

// A warp's results, times a factor for each half, as its sixteen rows of a tile: so many of them, behind which there
// stays 0.
template <typename T>
__device__ void lay_rows(unsigned char* rows, const RowSums& sums, const float (&factors)[2], int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (lane / 4 + 8 * half < count)
#pragma unroll
      for (int word = 0; word < 4; ++word)
        *reinterpret_cast<uint32_t*>(rows + half * eight_rows_bytes + place_in_window(lane / 4, word) + lane % 4 * 4) =
            packed_pair<T>(sums[word][2 * half] * factors[half], sums[word][2 * half + 1] * factors[half]);
}

// The same on Hopper by fewer stores, times one factor. Rows from `count` on go to `nowhere` instead, eight rows of 16
// bytes.
template <typename T>
__device__ void lay_matrices(unsigned char* rows, const RowSums& sums, float factor, int count,
                             unsigned char (&nowhere)[8][16]) {
  const int row = static_cast<int>(threadIdx.x) % 8, word = static_cast<int>(threadIdx.x) % 32 / 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t at[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = packed_pair<T>(sums[i][2 * half] * factor, sums[i][2 * half + 1] * factor);
    store_matrices(row + 8 * half < count ? rows + half * eight_rows_bytes + place_in_window(row, word) : nowhere[row],
                   at);
  }
}

}  // namespace plimsoll::cuda
