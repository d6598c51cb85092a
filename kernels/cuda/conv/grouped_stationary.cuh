#pragma once

// Barriers, weights and results of weight-stationary convolutions of groups.

#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/grouped_lines.cuh"
#include "kernels/cuda/conv/grouped_stationary.h"

namespace plimsoll::cuda {

inline constexpr int stationary_taps = GroupedStationary::kernel * GroupedStationary::kernel;

struct StationaryBarriers {
  Barrier full[GroupedStationary::max_stages], empty[GroupedStationary::max_stages],
      there[GroupedStationary::staged_chunks], stored[GroupedStationary::staged_chunks], weights_are_read;

  __device__ void set_up(int stages, int parts) {
    for (int i = 0; i < stages; ++i) {
      set_up_barrier(&full[i], 1);
      set_up_barrier(&empty[i], GroupedStationary::warpgroups);
    }
    for (int i = 0; i < GroupedStationary::staged_chunks; ++i) {
      set_up_barrier(&there[i], parts * warpgroup_threads / warp_threads);
      set_up_barrier(&stored[i], 1);
    }
    set_up_barrier(&weights_are_read, GroupedStationary::computing_threads / warp_threads);
    show_barriers_to_copies();
  }
};

// The two warpgroups that compute, or one of them.
__device__ inline void wait_for_both() {
  asm volatile("bar.sync 1, %0;" ::"n"(GroupedStationary::computing_threads) : "memory");
}
__device__ inline void wait_for_turn(int group) {
  if (group == 0)
    asm volatile("bar.sync 2, %0;" ::"n"(GroupedStationary::computing_threads) : "memory");
  else
    asm volatile("bar.sync 3, %0;" ::"n"(GroupedStationary::computing_threads) : "memory");
}
__device__ inline void give_turn_to_other(int group) {
  if (group == 0)
    asm volatile("bar.arrive 3, %0;" ::"n"(GroupedStationary::computing_threads) : "memory");
  else
    asm volatile("bar.arrive 2, %0;" ::"n"(GroupedStationary::computing_threads) : "memory");
}

// ---- Weights ----

// Of a part, by the lines and columns that products read: rows of a second line have the taps that are one
// line further up there.
template <int shifts, int steps>
struct StationaryWeights {
  LeftFragment at[shifts + GroupedStationary::kernel - 1][GroupedStationary::kernel][steps];
};

// Of all channels of a block, row after row.
template <typename T>
__device__ void copy_weights(uint8_t* to, const T* w, const GroupedStationary& p, const StationaryBlock& mine) {
  const int row_units = stationary_taps * p.units, pitch = p.weight_pitch();
  const auto* from = reinterpret_cast<const uint4*>(w + int64_t{mine.channel} * row_units * unit_channels);
  for (int i = static_cast<int>(threadIdx.x); i < mine.channels * row_units;
       i += GroupedStationary::computing_threads) {
    const int row = p.of_weights.quotient(i);
    copy_async(to + (row * pitch + i - row * row_units) * 16, from + i, true);
  }
  commit_copies();
}

template <int shifts, int steps>
__device__ void load_weights(StationaryWeights<shifts, steps>& weights, const uint8_t* staged, const uint4* zeros,
                             const GroupedStationary& p, const StationaryBlock& mine, int part, int warp) {
  constexpr int shift_units = GroupedStationary::block_units / shifts;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, matrix = lane / 8;
  const int row_unit = 2 * warp + matrix % 2, shift = row_unit / shift_units, result = row_unit % shift_units;
  const uint32_t base = shared_address(staged), zero = shared_address(zeros);
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    const int term = 2 * s + matrix / 2, group = result / p.units;
    // Rows of weights are channels of y, which a gradient sums over.
    const int outer = part * p.part_units + (p.gradient ? term : result),
              inner = (p.gradient ? result : term) - group * p.units;
    const bool is_own =
        term / p.units == group && max(term, result) < p.part_units && outer * unit_channels < mine.channels;
#pragma unroll
    for (int line = 0; line < shifts + GroupedStationary::kernel - 1; ++line)
#pragma unroll
      for (int column = 0; column < GroupedStationary::kernel; ++column) {
        const int down = line - shift, own = down * GroupedStationary::kernel + column,
                  tap = p.gradient ? stationary_taps - 1 - own : own;
        const int unit = (outer * unit_channels + lane % 8) * p.weight_pitch() + tap * p.units + inner;
        const bool is_tap = down >= 0 && down < GroupedStationary::kernel;
        const uint32_t at = is_own && is_tap ? base + static_cast<uint32_t>(unit * 16) : zero;
        if (p.gradient)
          load_matrices_transposed_at(weights.at[line][column][s].at, at);
        else
          load_matrices_at(weights.at[line][column][s].at, at);
      }
  }
}

// ---- Results ----

// Where a thread leaves rows of 8 x 8 matrices of a chunk's results, a row being 8 channels of a pixel: unit u of pixel
// p of a box stands at place u ^ (p % 8). Results between lines go where nothing is read.
template <int shifts, int columns>
struct ChunkResults {
  static constexpr int pairs = (columns / 8 + 1) / 2;
  uint32_t at[pairs];

  __device__ ChunkResults(const uint8_t* staged, const GroupedStationary& p, int part, int warp) {
    constexpr int shift_units = GroupedStationary::block_units / shifts;
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, matrix = lane / 8;
    const int row_unit = 2 * warp + matrix % 2, shift = row_unit / shift_units, of_part = row_unit % shift_units,
              unit = part * p.part_units + of_part;
    const uint32_t first = shared_address(staged);
    const int spare = p.chunk_bytes() - GroupedStationary::spare_bytes + lane * 16;
#pragma unroll
    for (int k = 0; k < pairs; ++k) {
      const ChunkColumn column(p, 16 * k + matrix / 2 * 8 + lane % 8);
      const int pixel = column.in_box(p, shift);
      const int own = pixel * GroupedStationary::pixel_bytes + (unit ^ pixel % 8) * 16;
      at[k] = first + static_cast<uint32_t>(column.is_there(p) && of_part < p.part_units ? own : spare);
    }
  }

  template <typename T>
  __device__ void stage(const float (&sums)[columns / 8][4], int moved) const {
    const auto first = [&](int i) { return packed_pair<T>(sums[i][0], sums[i][1]); };
    const auto second = [&](int i) { return packed_pair<T>(sums[i][2], sums[i][3]); };
#pragma unroll
    for (int k = 0; k < pairs; ++k) {
      const uint32_t to = at[k] + static_cast<uint32_t>(moved);
      if (2 * k + 1 < columns / 8)
        store_matrices_transposed_at(to, {first(2 * k), second(2 * k), first(2 * k + 1), second(2 * k + 1)});
      else
        store_two_matrices_transposed_at(to, first(2 * k), second(2 * k));
    }
  }
};

}  // namespace plimsoll::cuda
