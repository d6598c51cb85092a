#pragma once

// What kernels of small windows share whose tiles the copy engine brings, and which lay results over them.

#include "kernels/cuda/attention/attention_windows.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/short_boxes.cuh"
#include "kernels/cuda/common/warpgroup.cuh"

namespace plimsoll::cuda {

// Clears what no window has of tiles one behind the other: rows from rows_of(tile) on.
template <typename RowsOf>
__device__ void clear_rest(unsigned char* tiles, int count, RowsOf rows_of) {
  constexpr int words = window_row_bytes / 16, of_tile = max_window * words;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count * of_tile; i += window_threads)
    if (i / words % max_window >= rows_of(i / of_tile)) reinterpret_cast<uint4*>(tiles)[i] = uint4{};
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

}  // namespace plimsoll::cuda
