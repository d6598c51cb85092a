#pragma once

// Barriers, weights and results of weight-stationary convolutions of groups.

#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/grouped_lines.cuh"
#include "kernels/cuda/conv/grouped_stationary.h"
#include "kernels/cuda/conv/stationary_images.cuh"

namespace plimsoll::cuda {

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

// The two computing warpgroups start their products in turn.
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

// The sizes that a kernel is compiled for.
template <int scale_, int stride_, int shifts_, int steps_>
struct StationaryForm {
  static constexpr int scale = scale_, stride = stride_, shifts = shifts_, steps = steps_;
  static constexpr int planes_down = stride > shifts ? stride : shifts, lines = shifts + GroupedStationary::kernel - 1;
  static constexpr int pieces = scale * scale;  // results of a column, which are computed one after the other
  // Kernels of squares wait for memory and need no turns. One warpgroup may have one chunk more than the other: with
  // several pieces it would wait for turns that nobody gives.
  static constexpr bool takes_turns = pieces == 1;
};

// ---- Weights ----

// The left operands of a part, by the line and column of the image that a product reads. In the rows of the second of
// two lines the taps are shifted by one line.
template <typename Form>
struct StationaryWeights {
  LeftFragment at[Form::lines][GroupedStationary::kernel][Form::steps];
};

// Starts to copy the weights of a block to shared memory, one row for each channel of y.
template <typename T>
__device__ void copy_weights(uint8_t* to, const T* w, const GroupedStationary& p, const StationaryBlock& mine) {
  const int row_units = GroupedStationary::taps * p.units, pitch = p.weight_pitch();
  const auto* from = reinterpret_cast<const uint4*>(w + int64_t{mine.channel} * row_units * unit_channels);
  for (int i = static_cast<int>(threadIdx.x); i < mine.channels * row_units;
       i += GroupedStationary::computing_threads) {
    const int row = p.of_weights.quotient(i);
    copy_async(to + (row * pitch + i - row * row_units) * 16, from + i, true);
  }
  commit_copies();
}

template <typename Form>
__device__ void load_weights(StationaryWeights<Form>& weights, const uint8_t* staged, const uint4* zeros,
                             const GroupedStationary& p, const StationaryBlock& mine, int part, int warp) {
  constexpr int shift_units = GroupedStationary::block_units / Form::shifts;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, matrix = lane / 8;
  const int row_unit = 2 * warp + matrix % 2, shift = row_unit / shift_units, result = row_unit % shift_units;
  const uint32_t base = shared_address(staged), zero = shared_address(zeros);
#pragma unroll
  for (int s = 0; s < Form::steps; ++s) {
    const int term = 2 * s + matrix / 2, group = result / p.units;
    // Rows of weights belong to channels of y: a gradient sums over them.
    const int outer = part * p.part_units + (p.gradient ? term : result),
              inner = (p.gradient ? result : term) - group * p.units;
    const bool is_own =
        term / p.units == group && max(term, result) < p.part_units && outer * unit_channels < mine.channels;
#pragma unroll
    for (int line = 0; line < Form::lines; ++line)
#pragma unroll
      for (int column = 0; column < GroupedStationary::kernel; ++column) {
        const int down = line - shift, own = down * GroupedStationary::kernel + column,
                  tap = p.gradient && p.scale == 1 ? GroupedStationary::taps - 1 - own : own;
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

// Writes the results of a chunk to its box in shared memory, in rows of 8 x 8 matrices; a row is 8 channels of a pixel.
// Unit u of pixel p stands at place u ^ (p % 8). Columns between lines are written to spare bytes that nobody reads.
template <typename Form, int columns>
class ChunkResults {
 public:
  __device__ ChunkResults(const uint8_t* staged, const GroupedStationary& p, int part, int warp) {
    constexpr int shift_units = GroupedStationary::block_units / Form::shifts;
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, matrix = lane / 8;
    const int row_unit = 2 * warp + matrix % 2, shift = row_unit / shift_units, of_part = row_unit % shift_units;
    const uint32_t first = shared_address(staged);
    unit_ = static_cast<uint32_t>(part * p.part_units + of_part) * 16;
    spare_ = first + static_cast<uint32_t>(p.chunk_bytes() - GroupedStationary::spare_bytes + lane * 16);
#pragma unroll
    for (int k = 0; k < pairs; ++k) {
      const ChunkColumn column(p, 16 * k + matrix / 2 * 8 + lane % 8);
      const bool is_there = column.is_there(p) && of_part < p.part_units;
      const uint32_t row = first + static_cast<uint32_t>(column.in_box(p, shift) * GroupedStationary::pixel_bytes);
      at_[k] = Form::scale > 1 ? (is_there ? row : nowhere) : is_there ? place_of(row) : spare_;
    }
  }

  // moved: bytes from the first box to the chunk's one; behind: pixels from a square's first result to this one.
  template <typename T>
  __device__ __forceinline__ void stage(const float (&sums)[columns / 8][4], int moved, int behind) const {
    const auto first = [&](int i) { return packed_pair<T>(sums[i][0], sums[i][1]); };
    const auto second = [&](int i) { return packed_pair<T>(sums[i][2], sums[i][3]); };
    const auto to = [&](int k) {
      const uint32_t further = static_cast<uint32_t>(moved + behind * GroupedStationary::pixel_bytes);
      if (Form::scale > 1) return at_[k] == nowhere ? spare_ : place_of(at_[k] + further);
      return at_[k] + further;
    };
    constexpr int matrices = columns / 8;
#pragma unroll
    for (int k = 0; k < matrices / 2; ++k)
      store_matrices_transposed_at(to(k), {first(2 * k), second(2 * k), first(2 * k + 1), second(2 * k + 1)});
    if constexpr (matrices % 2 != 0)
      store_two_matrices_transposed_at(to(pairs - 1), first(matrices - 1), second(matrices - 1));
  }

 private:
  static constexpr int pairs = (columns / 8 + 1) / 2;
  static constexpr uint32_t nowhere = 0;
  uint32_t unit_, spare_, at_[pairs];  // at_: where results go, or for squares the row of their first pixel

  // The place of this thread's unit in the row of a pixel. Boxes begin at a border of 1024 bytes, so the address tells
  // p % 8.
  __device__ uint32_t place_of(uint32_t row) const {
    return row + (unit_ ^ row / GroupedStationary::pixel_bytes % GroupedStationary::block_units * 16);
  }
};

}  // namespace plimsoll::cuda
