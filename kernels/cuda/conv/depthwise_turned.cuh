#pragma once

// Products of depthwise conv_dw that turn. Their terms are 4 neighbouring columns in each of 4 segments of a tile's
// row. Of the 8 columns of x that meet a column of dy, 4 stay in a thread's registers when the products move on by 4
// columns: each column of products then belongs to another tap, 4 further on or 4 before, so that every other move has
// sums of its own. That takes two thirds of the loads from shared memory that products with all columns anew take.

#include "kernels/cuda/conv/depthwise_sparse.cuh"

namespace plimsoll::cuda {

constexpr int turned_columns = 4;

// Bytes from a stage to the units that a thread reads: of dy in its row, by the parity of a move; of x from the
// distance on that is the thread's, by which of the 8 columns have been replaced how often.
struct TurnedPlaces {
  using Plan = DepthwiseSparseWeights;
  static constexpr int moves = (Plan::segment + turned_columns - 1) / turned_columns;
  static constexpr int last_columns = Plan::segment - (moves - 1) * turned_columns;  // of the last move
  static constexpr int turns = moves / 2 + 1;

  int dy[2][turned_columns], x[turns][turned_columns];

  __device__ TurnedPlaces(const Plan& p, int tile, int unit) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, line = lane / 4, thread = lane % 4;
    const int of_image = Plan::segments / p.images;
    // Segments in such an order that 8 threads that read at once are at different banks.
    const auto in_order = [](int number) { return number == 1 ? 2 : number == 2 ? 1 : number; };
    const auto first_of = [&](int number, int pitch) {
      return number / of_image * pitch + number % of_image * Plan::segment;
    };
#pragma unroll
    for (int i = 0; i < turned_columns; ++i) {
      // Units 2 i and 2 i + 1 are of terms beside each other.
      const int number = in_order(thread % 2 * 2 + i % 2), column = thread / 2 + i / 2 * 2;
      const int pixel = line % Plan::step_rows * p.dy_row + tile * p.second_dy + first_of(number, p.width) + column;
#pragma unroll
      for (int parity = 0; parity < 2; ++parity) dy[parity][i] = place_in_pixel(pixel + parity * turned_columns, unit);
    }
    const int number = in_order(thread), image = number / of_image;
#pragma unroll
    for (int turn = 0; turn < turns; ++turn)
#pragma unroll
      for (int i = 0; i < turned_columns; ++i) {
        const int from = number % of_image * Plan::segment + i + line + 2 * turned_columns * turn + p.across.shift;
        const bool inside = from >= 0 && from < p.across.pixels;
        x[turn][i] = place_in_pixel(inside ? p.first_x + tile * p.second_x + image * p.across.pixels + from
                                           : p.first_zero + p.x_row + (from & (Plan::turn - 1)),
                                    unit);
      }
  }
};

__device__ inline void load_unit_if(bool loads, uint4& unit, uint32_t at) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(unit.x), "+r"(unit.y), "+r"(unit.z), "+r"(unit.w)
               : "r"(at), "r"(static_cast<uint32_t>(loads))
               : "memory");
}

// Left operands of a unit's pairs of channels: units 2 i and 2 i + 1 are of terms beside each other.
using LeftPairs = uint32_t[unit_pairs][4];
__device__ inline void pair_terms(LeftPairs& left, const uint4 (&units)[4]) {
#pragma unroll
  for (int pair = 0; pair < unit_pairs; ++pair)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 &first = units[i / 2 * 2], &second = units[i / 2 * 2 + 1];
      left[pair][i] = __byte_perm(pair_of(first, pair), pair_of(second, pair), i % 2 ? 0x7632 : 0x5410);
    }
}

// Adds the products of a unit's pairs with four units of a thread.
template <typename T>
__device__ void add_products(float (&sums)[unit_pairs][4], const LeftPairs& left, const uint4 (&units)[4]) {
#pragma unroll
  for (int pair = 0; pair < unit_pairs; ++pair) {
    uint32_t right[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) right[i] = pair_of(units[i], pair);
    multiply_add_sparse<T>(sums[pair], left[pair], right, sums[pair]);
  }
}

// Sums of a unit's pairs of channels, of either row of x of all steps: each meets another row of taps in the same row
// of dy.
using SparseWeightSums = float[DepthwiseSparseWeights::step_rows][unit_pairs][4];
using TurnedSums = SparseWeightSums[2];  // of every other move

// dy, x: of the thread's row of dy, and of the step's stage
template <typename T>
__device__ void add_turned_step(TurnedSums& sums, uint32_t dy, uint32_t x, const TurnedPlaces& places,
                                const DepthwiseSparseWeights& p) {
  using Plan = DepthwiseSparseWeights;
  constexpr int two_moves = 2 * turned_columns * Plan::pixel_bytes;
  const bool second_half = threadIdx.x % warp_threads >= warp_threads / 2;
  uint4 of_x[Plan::step_rows][turned_columns];
#pragma unroll
  for (int move = 0; move < TurnedPlaces::moves; ++move) {
    const int columns = move == TurnedPlaces::moves - 1 ? TurnedPlaces::last_columns : turned_columns;
    uint4 of_dy[turned_columns];
#pragma unroll
    for (int i = 0; i < turned_columns; ++i)
      of_dy[i] =
          i / 2 * 2 < columns ? load_unit(dy + places.dy[move % 2][i] + move / 2 * two_moves) : uint4{0, 0, 0, 0};
    LeftPairs left;
    pair_terms(left, of_dy);
#pragma unroll
    for (int row = 0; row < Plan::step_rows; ++row) {
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        const uint32_t at = x + row * p.x_row * Plan::pixel_bytes + places.x[(move + 1) / 2][i];
        if (move == 0)
          of_x[row][i] = load_unit(at);
        else
          load_unit_if(second_half == (move % 2 == 0), of_x[row][i], at);
      }
      add_products<T>(sums[move % 2][row], left, of_x[row]);
    }
  }
}

// Adds the sums of every other move to those of the others.
__device__ inline void join_turns(SparseWeightSums& to, const TurnedSums& sums) {
  constexpr int threads_of_turn = turned_columns / 2;  // a thread has two columns of products
#pragma unroll
  for (int row = 0; row < DepthwiseSparseWeights::step_rows; ++row)
#pragma unroll
    for (int pair = 0; pair < unit_pairs; ++pair)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        to[row][pair][i] = sums[0][row][pair][i] + __shfl_xor_sync(whole_warp, sums[1][row][pair][i], threads_of_turn);
}

}  // namespace plimsoll::cuda
