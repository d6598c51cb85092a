#pragma once

// What the gradients of attention of whole heads in a block share (attention_whole_heads_grad.cu, and
// attention_short_heads_grad.cu for up to 64 rows): how tensors are copied, deltas made and results stored. Rows of
// shared memory have 64 elements, of which a shorter head leaves the last ones 0.

#include "kernels/cuda/attention/attention_warpgroup_grad.cuh"
#include "kernels/cuda/attention/whole_heads_sizes.h"
#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/common/packed.cuh"

namespace plimsoll::cuda {

// What copies of boxes know of the tensors.
struct HeadMaps {
  CUtensorMap q, dy, k, v;

  // For boxes of so many rows and columns.
  [[nodiscard]] cudaError_t fill(const AttentionShape& n, const AttentionGradCall& grads, int rows, int columns) {
    for (cudaError_t error : {map_rows(q, grads.q, n.batch, n.rows, n.heads, n.depth, n.q_step, rows),
                              map_rows(dy, grads.dy, n.batch, n.rows, n.heads, n.depth, n.heads * n.depth, rows),
                              map_rows(k, grads.k, n.batch, n.columns, n.heads, n.depth, n.k_step, columns),
                              map_rows(v, grads.v, n.batch, n.columns, n.heads, n.depth, n.v_step, columns)})
      if (error != cudaSuccess) return error;
    return cudaSuccess;
  }
};

// A head of the launch, and where its rows are.
struct ShortHead {
  int b, h;  // of the batch, of the sample's heads

  __device__ ShortHead(const AttentionShape& n, int number)
      : b(number / static_cast<int>(n.heads)), h(number - b * static_cast<int>(n.heads)) {}

  // From row `row` of the `rows` of its sample on, which lie `step` elements apart.
  template <typename E>
  __device__ E* at(E* tensor, const AttentionShape& n, int64_t rows, int row, int step) const {
    return tensor + (int64_t{b * static_cast<int>(rows) + row} * step + h * static_cast<int>(n.depth));
  }
};

// Of `count` times sixteen rows, for lse and delta: a thread of a warpgroup reads 16 bytes of every sixteenth row.
template <typename T, int count>
struct ReadRows {
  static constexpr int words = 8, at_once = warpgroup_threads / words;
  uint4 y[count];
  float lse[count];

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % warpgroup_threads; }
  __device__ static int row(int i) { return thread() / words + i * at_once; }
  __device__ static int word() { return thread() % words; }

  __device__ void read(const AttentionShape& n, const AttentionGradCall& grads, const ShortHead& head, int first) {
    const float* const all_lse = grads.lse + int64_t{head.b * static_cast<int>(n.heads) + head.h} * n.rows;
    read_words(y, grads.y, n, head, first);
#pragma unroll
    for (int i = 0; i < count; ++i)
      lse[i] = first + row(i) < n.rows && word() == 0 ? all_lse[first + row(i)] : -INFINITY;
  }
  // Of y or dy; what lies outside is 0.
  __device__ static void read_words(uint4 (&to)[count], const void* tensor, const AttentionShape& n,
                                    const ShortHead& head, int first) {
    const int step = static_cast<int>(n.heads * n.depth);
    const T* const from = head.at(static_cast<const T*>(tensor), n, n.rows, first + row(0), step) + 8 * word();
#pragma unroll
    for (int i = 0; i < count; ++i) {
      to[i] = uint4{};
      if (first + row(i) < n.rows && 8 * word() < n.depth)
        to[i] = __ldg(reinterpret_cast<const uint4*>(from + i * at_once * step));
    }
  }
  // Writes lse, in units of log 2, and 64 floats behind it delta times what dropout keeps. Rows outside have an lse of
  // -inf here, and so do not count.
  __device__ void write(float* constants, int i, const uint4& dy, float kept_share = 1.0f) const {
    Packed<T, 8> a, b;
    memcpy(a.word, &y[i], sizeof(dy));
    memcpy(b.word, &dy, sizeof(dy));
    float delta = 0.0f;
#pragma unroll
    for (int d = 0; d < 8; ++d) delta += a[d] * b[d];
#pragma unroll
    for (int distance = 1; distance < words; distance *= 2) delta += __shfl_xor_sync(whole_warp, delta, distance);
    if (word() != 0) return;
    constants[row(i)] = in_log2(lse[i]);
    constants[64 + row(i)] = delta * kept_share;
  }
};

// Writes a warp's sums times a factor as up to sixteen rows of a head, by way of sixteen rows of shared memory that are
// its own.
template <typename T>
__device__ void store_sixteen_rows(T* to, int step, int rows, int depth, T* own, const float (&sums)[8][4], float by) {
  const int lane = made_here(static_cast<int>(threadIdx.x) % 32);
  unsigned char* const bytes = reinterpret_cast<unsigned char*>(own);
  unsigned char* const row = bytes + lane / 4 * 128 + lane % 4 * 4;
  __syncwarp();  // they may still be read
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int d = 0; d < 8; ++d)
      *reinterpret_cast<uint32_t*>(row + half * 1024 + ((d ^ lane / 4) << 4)) =
          packed_pair<T>(sums[d][2 * half] * by, sums[d][2 * half + 1] * by);
  __syncwarp();
  const int word = lane % 8;
  if (8 * word >= depth) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = lane / 8 + 4 * i;
    if (r < rows)
      *reinterpret_cast<uint4*>(to + r * step + 8 * word) =
          *reinterpret_cast<const uint4*>(bytes + r * 128 + ((word ^ r % 8) << 4));
  }
}

// Where this thread writes dS of its warp's sixteen columns, as store_matrices takes it: elements of a tile whose rows
// are columns. Sixteen rows further on it is this ^ 16.
__device__ inline int place_in_columns(int first_column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return (first_column + lane / 8 % 2 * 8 + lane % 8) * 64 + (lane / 16 ^ lane % 8) * 8;
}

// dS of pairs of a tile from dP, of `weights` that are probabilities rounded to T. delta_of(t) are those of two rows.
template <typename Tile, typename T, typename DeltaOf>
__device__ void differentiate_rounded(Sums<1, Tile::n_tiles>& dp, const Weights<Tile>& weights, DeltaOf delta_of) {
#pragma unroll
  for (int t = 0; t < Tile::n_tiles; ++t) {
    const float2 delta = delta_of(t);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Packed<T, 2> p{{weights.at[t / 2].at[t % 2 * 2 + half]}};
      dp[0][t][2 * half] = p[0] * (dp[0][t][2 * half] - delta.x);
      dp[0][t][2 * half + 1] = p[1] * (dp[0][t][2 * half + 1] - delta.y);
    }
  }
}

// Those of up to so many rows and columns; otherwise as attention_grad_whole_heads.
[[nodiscard]] cudaError_t attention_grad_short_heads(const AttentionShape& shape, const AttentionGradCall& grads,
                                                     cudaStream_t stream);

}  // namespace plimsoll::cuda
