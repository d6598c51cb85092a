#pragma once

// Sums of columns over the rows that teams of threads have: those of a block's teams are added in shared memory, those
// of all blocks by the blocks of a cooperative launch, each of which takes some columns. The orders are fixed.

#include "kernels/cuda/common/rows.cuh"

#include <cooperative_groups.h>

namespace plimsoll::cuda {

// A block's sums of the columns are words of four, in shared memory [held * n / 4, Shares::threads], and in memory
// [n / 4, accesses] for each block: neighbouring threads have neighbouring accesses, so that they meet neither the same
// bank nor the same sector. Each instruction of this end runs once, and waits for its code to come: loops stay short.
template <typename Shares, int n>
__device__ void keep_sums(float4* of_threads, const float (&sums)[Shares::held][n]) {
#pragma unroll
  for (int k = 0; k < Shares::held; ++k)
#pragma unroll
    for (int i = 0; i < n; i += 4)
      of_threads[(k * n + i) / 4 * Shares::threads + static_cast<int>(threadIdx.x)] =
          make_float4(sums[k][i], sums[k][i + 1], sums[k][i + 2], sums[k][i + 3]);
}

// The sums of one parameter, where the blocks' go, and where those of all; null where they are not wanted.
struct ColumnSums {
  const float4* of_threads;
  float* partials;
  void* out;
};

// Words of both parameters in one row: those of the scale, then those of the bias. `first` and `end` are of what is
// wanted. Pointers are chosen one by one: a reference to either parameter's would have both in memory.
struct SumWords {
  ColumnSums scale, bias;
  int of_parameter, first, end;

  __device__ SumWords(const ColumnSums& scale, const ColumnSums& bias, int words)
      : scale(scale),
        bias(bias),
        of_parameter(words),
        first(scale.partials ? 0 : words),
        end(bias.partials ? 2 * words : words) {}
  __device__ bool is_scale(int place) const { return place < of_parameter; }
  __device__ int word(int place) const { return is_scale(place) ? place : place - of_parameter; }
  __device__ const float4* of_threads(int place) const { return is_scale(place) ? scale.of_threads : bias.of_threads; }
  __device__ float4* partials(int place) const {
    return reinterpret_cast<float4*>(is_scale(place) ? scale.partials : bias.partials) + word(place);
  }
  __device__ void* out(int place) const { return is_scale(place) ? scale.out : bias.out; }
};

// Adds up the teams' sums in the order of the teams, those of both parameters in one loop.
template <typename Shares, int n>
__device__ void write_partials(const ColumnSums& scale, const ColumnSums& bias, int team_threads, int accesses) {
  const SumWords words(scale, bias, n / 4 * accesses);
#pragma unroll 1
  for (int place = words.first + static_cast<int>(threadIdx.x); place < words.end; place += Shares::threads) {
    const int word = words.word(place), i = word / accesses, access = word - i * accesses, k = access / team_threads;
    const float4* const of_first_team =
        words.of_threads(place) + (k * (n / 4) + i) * Shares::threads + access - k * team_threads;
    float4 sum{};
#pragma unroll 4
    for (int thread = 0; thread < Shares::threads; thread += team_threads) {
      const float4 of_team = of_first_team[thread];
      sum = make_float4(sum.x + of_team.x, sum.y + of_team.y, sum.z + of_team.z, sum.w + of_team.w);
    }
    words.partials(place)[int64_t{blockIdx.x} * words.of_parameter] = sum;
  }
}

// A word of sums of four columns.
struct FourSums {
  float x, y, z, w;

  __device__ FourSums operator+(const FourSums& other) const {
    return {x + other.x, y + other.y, z + other.z, w + other.w};
  }
};

// Adds up what the blocks have of a word, `words` apart: a lane every 32nd block's, and then the warp what its lanes
// have. All that a lane reads is on its way at once, for up to 160 blocks.
__device__ inline FourSums sum_of_blocks(const float4* of_first_block, int words) {
  constexpr int in_flight = 5;
  const auto blocks = static_cast<int>(gridDim.x);
  FourSums sum{};
  for (int first = static_cast<int>(threadIdx.x) % warp_threads; first < blocks; first += in_flight * warp_threads) {
    float4 loaded[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      const int block = first + k * warp_threads;
      loaded[k] = block < blocks ? __ldcg(of_first_block + int64_t{block} * words) : float4{};
    }
#pragma unroll
    for (const float4& of_block : loaded) sum = sum + FourSums{of_block.x, of_block.y, of_block.z, of_block.w};
  }
  return warp_reduce(sum, Add());
}

// The sums over all blocks, once each has written its partials; every warp of the grid takes words in turn.
template <typename P, typename Shares, int n>
__device__ void write_sums(const ColumnSums& scale, const ColumnSums& bias, int accesses) {
  cooperative_groups::this_grid().sync();
  const SumWords words(scale, bias, n / 4 * accesses);
  const auto thread = static_cast<int>(threadIdx.x), blocks = static_cast<int>(gridDim.x);
#pragma unroll 1
  for (int place = words.first + thread / warp_threads * blocks + static_cast<int>(blockIdx.x); place < words.end;
       place += Shares::warps * blocks) {
    const int word = words.word(place), i = word / accesses, column = (word - i * accesses) * n + 4 * i;
    const FourSums sum = sum_of_blocks(words.partials(place), words.of_parameter);
    if (thread % warp_threads == 0)
      store_vector(static_cast<P*>(words.out(place)) + column,
                   Vector<P, 4>{{narrow<P>(sum.x), narrow<P>(sum.y), narrow<P>(sum.z), narrow<P>(sum.w)}});
  }
}

}  // namespace plimsoll::cuda
