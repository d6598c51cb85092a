#pragma once

// Which probabilities dropout keeps on the matrix units: bits that a kernel before the others draws, and tiles of them.

#include "kernels/cuda/attention/attention_mma.cuh"

namespace plimsoll::cuda {

// What the kernels read beside the tensors, and how they may access those.
struct MmaCall {
  KeptBits kept;
  int64_t first_group, groups;  // of batch * kv_heads
  bool aligned;                 // rows of every tensor begin at 16-byte borders and are whole words of 16 bytes
};

// The bits of a thread's elements, those of element (m, n, e) at a place known when compiling. Rows beyond the last,
// and words beyond a row's, are all dropped.
template <typename Tile, Owner owner>
struct TileBits;

template <typename Tile>
struct TileBits<Tile, Owner::Rows> {
  static constexpr int count = (Tile::others + 31) / 32;
  uint32_t words[Tile::m_tiles][2][count];

  __device__ void load(const AttentionShape& n, const uint32_t* head, const Place<Owner::Rows>& place) {
    const int pitch = static_cast<int>(kept_words(n.columns)), first = place.other / 32;
#pragma unroll
    for (int m = 0; m < Tile::m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < count; ++i) {
          const int row = place.own_row(m, 2 * half);
          const bool inside = row < n.rows && first + i < pitch;
          words[m][half][i] = inside ? head[int64_t{row} * pitch + first + i] >> place.other % 32 : 0;
        }
  }
  __device__ bool kept(int m, int n, int e) const { return words[m][e / 2][8 * n / 32] >> (8 * n % 32 + e % 2) & 1; }
};

// Where columns are owned a warp's lie in one word of each row; the words of a tile's rows pass by shared memory.
template <typename Tile>
struct TileBits<Tile, Owner::Columns> {
  static constexpr int shared_words = Tile::warps * Tile::others;
  uint32_t words[Tile::n_tiles][2];

  __device__ static void load(uint32_t* shared, const AttentionShape& n, const uint32_t* head, int first_own,
                              int first_other) {
    const int pitch = static_cast<int>(kept_words(n.columns));
    for (int i = static_cast<int>(threadIdx.x); i < shared_words; i += Tile::threads) {
      const int row = first_other + i % Tile::others, word = (first_own + i / Tile::others * Tile::warp_rows) / 32;
      const bool inside = row < n.rows && word < pitch;
      copy_word_async(shared + i, head + (inside ? int64_t{row} * pitch + word : 0), inside);
    }
  }
  __device__ void read(const uint32_t* shared, const Place<Owner::Columns>& place) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t* own = shared + static_cast<int>(threadIdx.x) / 32 * Tile::others + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < Tile::n_tiles; ++t) {
      const uint2 pair = *reinterpret_cast<const uint2*>(own + 8 * t);
      words[t][0] = pair.x >> place.own % 32;
      words[t][1] = pair.y >> place.own % 32;
    }
  }
  __device__ bool kept(int m, int n, int e) const { return words[n][e % 2] >> (16 * m + e / 2 * 8) & 1; }
};

// The bits of head h of sample b. A group's heads lie one after the other.
__device__ inline const uint32_t* head_bits(const AttentionShape& n, const MmaCall& call, const Head& head) {
  const int64_t number = head.b * n.heads + head.h - call.first_group * (n.heads / n.kv_heads);
  return call.kept.words + number * n.rows * kept_words(n.columns);
}

// Writes the bits of all rows of `groups` groups from `first_group` on.
[[nodiscard]] cudaError_t draw_kept_bits(const AttentionShape& shape, const MmaCall& call, cudaStream_t stream);

// Calls launch(MmaCall) for each piece of the groups, their bits drawn.
template <typename Launch>
cudaError_t for_groups(const AttentionShape& shape, const KeptBits& kept, bool aligned, cudaStream_t stream,
                       Launch launch) {
  const int64_t groups = shape.batch * shape.kv_heads, step = shape.dropout > 0 ? kept.groups : groups;
  for (int64_t first = 0; first < groups; first += step) {
    const MmaCall call{kept, first, first + step < groups ? step : groups - first, aligned};
    if (shape.dropout > 0)
      if (cudaError_t error = draw_kept_bits(shape, call, stream); error != cudaSuccess) return error;
    if (cudaError_t error = launch(call); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

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
