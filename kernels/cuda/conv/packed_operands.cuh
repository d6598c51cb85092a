#pragma once

// Words of pixels as operands of products that sum over pixels, and the sums.

#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/cuda/conv/packed_lines.cuh"
#include "kernels/cuda/conv/packed_sums.h"

namespace plimsoll::cuda {

// Words of four pixels: neighbours in pairs.
template <int count>
struct PixelWords {
  uint32_t at[4][count];

  // The next pixel of a pair is one pixel on, and the second pair begins `second_pair` bytes behind the first.
  __device__ void load(int word, uint32_t address, uint32_t pixel_bytes, uint32_t second_pair) {
#pragma unroll
    for (int q = 0; q < 4; ++q) at[q][word] = shared_word(address + q % 2 * pixel_bytes + q / 2 * second_pair);
  }
  // The first, or the second, numbers of a word of a pair's two pixels.
  __device__ uint32_t paired(int word, int pair, bool second) const {
    return __byte_perm(at[2 * pair][word], at[2 * pair + 1][word], second ? 0x7632 : 0x5410);
  }
};

// Left operands: tiles of the first numbers of 16 words, and of their second ones.
template <int doubles>
struct NumbersOfX {
  PixelWords<2 * doubles> words;

  __device__ void load(uint32_t address, uint32_t pixel_bytes, uint32_t second_pair) {
#pragma unroll
    for (int i = 0; i < 2 * doubles; ++i)
      words.load(i, address + static_cast<uint32_t>(i * 32), pixel_bytes, second_pair);
  }
  __device__ LeftFragment fragment(int d, bool second) const {
    return {{words.paired(2 * d, 0, second), words.paired(2 * d + 1, 0, second), words.paired(2 * d, 1, second),
             words.paired(2 * d + 1, 1, second)}};
  }
};

// Right operands: tiles of the first channels of 8 words, and of their second ones; and one tile of both of four more
// words.
template <int doubles>
struct ChannelsOfDy {
  static constexpr int tiles = 2 * doubles + 1;
  PixelWords<doubles + 1> words;

  __device__ void load(uint32_t address, uint32_t to_last, uint32_t pixel_bytes, uint32_t second_pair) {
#pragma unroll
    for (int i = 0; i < doubles; ++i) words.load(i, address + static_cast<uint32_t>(i * 32), pixel_bytes, second_pair);
    words.load(doubles, address + to_last, pixel_bytes, second_pair);
  }
  __device__ RightFragments fragment(int tile, bool second_of_last) const {
    const bool second = tile + 1 < tiles ? tile % 2 != 0 : second_of_last;
    return {{words.paired(tile / 2, 0, second), words.paired(tile / 2, 1, second), 0, 0}};
  }
};

template <int x_doubles, int y_doubles>
struct WarpSums {
  static constexpr int tiles = ChannelsOfDy<y_doubles>::tiles, pairs = PackedSums::kernel * x_doubles * tiles * 4;
  float at[PackedSums::kernel][x_doubles][2][tiles][4];

  // Two neighbouring sums, of a number and the next: counts lines of taps, double tiles of x, tiles of dy and sums of a
  // thread.
  __device__ float2 pair(int index) const {
    const int i = index % 4, tile = index / 4 % tiles, d = index / (4 * tiles) % x_doubles,
              row = index / (4 * tiles * x_doubles);
    return {at[row][d][0][tile][i], at[row][d][1][tile][i]};
  }
};

// A warp's part of the sums. kind: of its block.
struct SumPart {
  int first_word, first_channel_word, team;
  bool is_there;

  __device__ SumPart(const PackedSums& p, int kind, int warp) {
    const int team_warps = PackedSums::warps / p.teams;
    team = warp / team_warps;
    const int part = kind * PackedSums::warps + warp - team * team_warps;
    is_there = part < p.x_parts * p.y_parts;
    const int x_part = part / p.y_parts;
    first_word = x_part * p.x_words(), first_channel_word = (part - x_part * p.y_parts) * p.y_words();
  }
};

// Writes two neighbouring sums.
template <int x_doubles, int y_doubles>
__device__ void write_pair(float* to, const PackedSums& p, const SumPart& part, int pair, float2 sums) {
  constexpr int tiles = ChannelsOfDy<y_doubles>::tiles;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int i = pair % 4, tile = pair / 4 % tiles, d = pair / (4 * tiles) % x_doubles,
            row = pair / (4 * tiles * x_doubles);
  const int number = 2 * (part.first_word + d * PackedSums::line_words + lane / 4 + i / 2 * 8);
  const bool is_last = tile == tiles - 1;
  const int word = part.first_channel_word + tile / 2 * 8 + (is_last ? lane % 4 : lane % 4 * 2 + i % 2);
  const int channel = 2 * word + (is_last ? i % 2 : tile % 2), width = PackedSums::kernel * p.x_channels;
  if (number >= width || channel >= p.y_channels) return;
  *reinterpret_cast<float2*>(to + (channel * PackedSums::kernel + row) * width + number) = sums;
}

template <int x_doubles, int y_doubles>
__device__ void write_sums(float* to, const WarpSums<x_doubles, y_doubles>& sums, const PackedSums& p,
                           const SumPart& part) {
  if (!part.is_there) return;
#pragma unroll
  for (int pair = 0; pair < WarpSums<x_doubles, y_doubles>::pairs; ++pair)
    write_pair<x_doubles, y_doubles>(to, p, part, pair, sums.pair(pair));
}

// Adds the sums of all teams in a fixed order and writes them; a warp has every teams-th pair of its part.
template <int teams, int x_doubles, int y_doubles>
__device__ void join_teams(float* to, float2* joined, const WarpSums<x_doubles, y_doubles>& sums, const PackedSums& p,
                           const SumPart& part, int warp) {
  using Sums = WarpSums<x_doubles, y_doubles>;
  constexpr int team_warps = PackedSums::warps / teams, pairs = divide_up(Sums::pairs, teams);
  const auto meet = [] { asm volatile("bar.sync 1, %0;" ::"n"(PackedSums::computing_threads) : "memory"); };
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  // Sums take the place of lines, which all warps have read.
  meet();
#pragma unroll
  for (int pair = 0; pair < Sums::pairs; ++pair)
    joined[(warp * Sums::pairs + pair) * warp_threads + lane] = sums.pair(pair);
  meet();
  const int of_team = warp % team_warps;
#pragma unroll 3
  for (int i = 0; i < pairs; ++i) {
    const int pair = i * teams + warp / team_warps;
    if (pair >= Sums::pairs) break;
    float2 of_teams[teams];
#pragma unroll
    for (int team = 0; team < teams; ++team)
      of_teams[team] = joined[((team * team_warps + of_team) * Sums::pairs + pair) * warp_threads + lane];
    float2 total = of_teams[0];
#pragma unroll
    for (int team = 1; team < teams; ++team) total.x += of_teams[team].x, total.y += of_teams[team].y;
    if (part.is_there) write_pair<x_doubles, y_doubles>(to, p, part, pair, total);
  }
}

}  // namespace plimsoll::cuda
