#pragma once

// How weights of groups in bands come from shared memory to registers.

#include "kernels/cuda/conv/grouped_bands.h"
#include "kernels/cuda/conv/grouped_lines.cuh"

namespace plimsoll::cuda {

// Right operands of a group: words of 8 terms by 8 result channels. Terms are the first two units of channels under a
// column of taps, or the last ones under the first two columns, and alone under the last column.
struct BandWeights {
  static constexpr int pairs = 4, units = GroupedBands::group_units;
  uint32_t pair[pairs][GroupedBands::kernel][units][2], alone[GroupedBands::kernel][units];
};

// From rows of weights in shared memory, those of the channels of y of a group.
template <bool gradient>
class BandWeightRows {
 public:
  __device__ explicit BandWeightRows(uint32_t rows) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    rows_ = rows + static_cast<uint32_t>(lane % 8 * GroupedBands::weight_row_bytes);
    second_ = lane / 8 % 2, unit_ = lane / 16, alone_ = min(lane / 8, BandWeights::units - 1);
  }
  __device__ void load(BandWeights& to) const {
    constexpr int last = BandWeights::units - 1, last_column = GroupedBands::kernel - 1;
#pragma unroll
    for (int k = 0; k < GroupedBands::kernel; ++k) {
#pragma unroll
      for (int i = 0; i < BandWeights::pairs; ++i) {
        const bool is_last = i == BandWeights::pairs - 1;
        const int column = is_last ? 0 : i, unit = is_last ? last : 0;
        const int further = place(is_last ? 1 : column, is_last ? last : 1, k, 0) - place(column, unit, k, 0);
        uint32_t both[4], rest[2];
        load_at(both, place(column, unit, k, 0) + second_ * further + unit_ * result_bytes);
        load_at(rest, place(column, unit, k, last) + second_ * further);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to.pair[i][k][0][half] = both[half], to.pair[i][k][1][half] = both[2 + half],
          to.pair[i][k][2][half] = rest[half];
      }
      uint32_t words[4];
      load_at(words, place(last_column, last, k, 0) + alone_ * result_bytes);
#pragma unroll
      for (int n = 0; n < BandWeights::units; ++n) to.alone[k][n] = words[n];
    }
  }

 private:
  // Rows belong to channels of y: a gradient sums over them, with the taps in the opposite order.
  static constexpr int unit_rows = 8 * GroupedBands::weight_row_bytes, tap_bytes = GroupedBands::group_channels * 2,
                       result_bytes = gradient ? 16 : unit_rows;
  uint32_t rows_;
  int second_, unit_, alone_;

  static constexpr int place(int column, int unit, int line, int result) {
    const int forward = line * GroupedBands::kernel + column,
              tap = gradient ? GroupedBands::taps - 1 - forward : forward;
    return tap * tap_bytes + unit * (gradient ? unit_rows : 16) + result * result_bytes;
  }
  __device__ void load_at(uint32_t (&to)[4], int offset) const {
    if (gradient)
      load_matrices_transposed_at(to, rows_ + static_cast<uint32_t>(offset));
    else
      load_matrices_at(to, rows_ + static_cast<uint32_t>(offset));
  }
  __device__ void load_at(uint32_t (&to)[2], int offset) const {
    if (gradient)
      load_two_matrices_transposed_at(to[0], to[1], rows_ + static_cast<uint32_t>(offset));
    else
      load_two_matrices_at(to[0], to[1], rows_ + static_cast<uint32_t>(offset));
  }
};

}  // namespace plimsoll::cuda
