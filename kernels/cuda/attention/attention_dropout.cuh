#pragma once

// Which probabilities dropout keeps, drawn where they are needed: a thread draws the bits of 32 neighbouring columns of
// a row, beside the products of the matrix units, and hands them to the threads that have those columns' scores. The
// rule is that of ir/support/philox.h.

#include "kernels/cuda/attention/attention_mma.cuh"

namespace plimsoll::cuda {

// The bits of a thread's elements, those of element (m, n, e) at a place known when compiling.
template <typename Tile, Owner owner>
struct TileBits;

template <typename Tile>
struct TileBits<Tile, Owner::Rows> {
  static constexpr int count = (Tile::others + 31) / 32;
  static_assert(Tile::warp_rows * count <= 32, "a thread draws one word at most");
  uint32_t words[Tile::m_tiles][2][count];

  // Of a tile that begins at `first_column`, for the warp's rows from `first_row` on.
  __device__ void draw(const KeptDraws& draws, int first_row, int first_column) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / count % Tile::warp_rows;
    const uint32_t drawn = draws(first_row + row, first_column / 32 + lane % count);
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < count; ++i)
          words[m][half][i] = __shfl_sync(whole_warp, drawn, (16 * m + 8 * half + lane / 4) * count + i) >>
                              (first_column % 32 + lane % 4 * 2);
  }
  __device__ bool kept(int m, int n, int e) const { return words[m][e / 2][8 * n / 32] >> (8 * n % 32 + e % 2) & 1; }
};

// Where columns are owned, the words of a tile's rows pass by shared memory, one column of words after the other.
template <typename Tile>
struct TileBits<Tile, Owner::Columns> {
  static constexpr int count = Tile::own % 32 == 0 ? Tile::own / 32 : (Tile::own + 47) / 32;
  static constexpr int shared_words = count * Tile::others;
  uint32_t words[Tile::n_tiles][2];

  // first_row is of the rows that `draws` counts.
  __device__ static void draw(uint32_t* shared, const KeptDraws& draws, int64_t first_row, int first_column) {
#pragma unroll
    for (int i = Tile::thread(); i < shared_words; i += Tile::threads)
      shared[i] = draws(first_row + i % Tile::others, first_column / 32 + i / Tile::others);
  }
  // The words of this warp's columns for the thread's first row.
  __device__ static const uint32_t* own_words(const uint32_t* shared, int first_column) {
    const int warp_column = first_column % 32 + static_cast<int>(threadIdx.x) / 32 * Tile::warp_rows;
    return shared + warp_column / 32 * Tile::others + threadIdx.x % 4 * 2;
  }
  __device__ void read(const uint32_t* shared, int first_column, const Place<Owner::Columns>& place) {
    const uint32_t* own = own_words(shared, first_column);
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t) {
      const uint2 pair = *reinterpret_cast<const uint2*>(own + 8 * t);
      words[t][0] = pair.x >> place.own % 32;
      words[t][1] = pair.y >> place.own % 32;
    }
  }
  __device__ bool kept(int m, int n, int e) const { return words[n][e % 2] >> (16 * m + e / 2 * 8) & 1; }
};

// What dropout leaves of weights.
template <typename Tile, typename Bits>
__device__ void drop(Sums<Tile::m_tiles, Tile::n_tiles>& weights, const Bits& bits) {
#pragma unroll
  for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) weights[m][t][e] = bits.kept(m, t, e) ? weights[m][t][e] : 0.0f;
}

}  // namespace plimsoll::cuda
