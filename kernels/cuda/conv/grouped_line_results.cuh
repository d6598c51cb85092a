#pragma once

// Results of a warp's tiles on their way to memory, through shared memory so that whole units of 16 bytes go out.

#include "kernels/cuda/common/short_boxes.cuh"
#include "kernels/cuda/conv/grouped_lines.h"
#include "kernels/cuda/conv/two_matrices.cuh"

namespace plimsoll::cuda {

// Leaves sums of 16 rows of `units` units of channels in shared memory, rounded, with a bias for the first `biased`
// ones; `row` is that of this thread.
template <typename T, int units>
__device__ void stage_sums(uint4* row, const float (&sums)[units][4], const T* bias, int biased) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  uint32_t words[units][2];
#pragma unroll
  for (int n = 0; n < units; ++n) {
    float added[2] = {};
    if (n < biased) {
      const T* of_unit = bias + n * unit_channels + lane % 4 * 2;
      added[0] = widen(of_unit[0]), added[1] = widen(of_unit[1]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      words[n][half] = packed_pair<T>(sums[n][2 * half] + added[0], sums[n][2 * half + 1] + added[1]);
  }
#pragma unroll
  for (int n = 0; n + 1 < units; n += 2)
    store_matrices(row + n + lane / 16, {words[n][0], words[n][1], words[n + 1][0], words[n + 1][1]});
  if constexpr (units % 2 != 0) store_two_matrices(row + units - 1, words[units - 1][0], words[units - 1][1]);
}

// The results of a warp's groups: `units` units of channels of `rows` pixels.
template <typename T, int units, int rows>
class LineResults {
 public:
  __device__ LineResults(T* out, uint4* staged, const GroupedLines& p, int first_group, int warp)
      : first_unit_(first_group * p.units),
        units_(min(units, (p.groups - first_group) * p.units)),
        pixel_units_(p.groups * p.units),
        out_(reinterpret_cast<uint4*>(out) + first_unit_),
        staged_(staged + warp * rows * pitch) {}

  // Of `count` pixels from `pixel` on, one behind the other.
  __device__ void write(const float (&sums)[rows / 16][units][4], const T* bias, int pixel, int count) const {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < rows / 16; ++i)
      stage_sums<T, units>(staged_ + (i * 16 + lane % 16) * pitch, sums[i], bias + first_unit_ * unit_channels,
                           bias ? units_ : 0);
    __syncwarp();
    uint4* to = out_ + int64_t{pixel} * pixel_units_;
#pragma unroll
    for (int first = 0; first < rows * units; first += warp_threads) {
      const int piece = first + lane, row = piece / units, n = piece - row * units;
      if (row < count && row < rows && n < units_) to[int64_t{row} * pixel_units_ + n] = staged_[row * pitch + n];
    }
  }

 private:
  static constexpr int pitch = odd_units(units);
  int first_unit_, units_, pixel_units_;
  uint4 *out_, *staged_;
};

// The same where all warps that have the same pixels, `warps` of them, leave their channels side by side in shared
// memory, `block_units` a pixel, and one thread has the copy engine take the rows to memory.
template <typename T, int units, int rows, int block_units, int warps>
class LineBoxes {
 public:
  // pixel_warp: which of the block's runs of pixels; part: which of the groups.
  __device__ LineBoxes(const CUtensorMap& out, uint4* staged, const GroupedLines& p, int channel, int first_group,
                       int pixel_warp, int part)
      : first_unit_(first_group * p.units),
        units_(min(units, (p.groups - first_group) * p.units)),
        channel_(channel),
        pixel_warp_(pixel_warp),
        stores_(part == 0 && threadIdx.x % warp_threads == 0),
        out_(out),
        box_(staged + pixel_warp * rows * block_units),
        staged_(box_ + part * units) {}

  // Of the pixels from `pixel` on.
  __device__ void write(const float (&sums)[rows / 16][units][4], const T* bias, int pixel) const {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    wait_for_stores();
    meet();
#pragma unroll
    for (int i = 0; i < rows / 16; ++i)
      stage_sums<T, units>(staged_ + (i * 16 + lane % 16) * block_units, sums[i], bias + first_unit_ * unit_channels,
                           bias ? units_ : 0);
    show_to_copies();
    meet();
    if (!stores_) return;
    store_box(box_, out_, channel_, pixel, 0, 0);
    commit_boxes();
  }
  // Before the block ends.
  __device__ void wait_for_stores() const {
    if (stores_) wait_for_box_reads();
  }

 private:
  int first_unit_, units_, channel_, pixel_warp_;
  bool stores_;
  const CUtensorMap& out_;
  uint4 *box_, *staged_;

  __device__ void meet() const {
    asm volatile("bar.sync %0, %1;" ::"r"(pixel_warp_ + 1), "n"(warps * warp_threads) : "memory");
  }
};

}  // namespace plimsoll::cuda
