#pragma once

// Tiles of attention: a block owns some rows (or columns) of one head and walks over the other side. Eight threads
// share an owned row, each with every eighth element of the other side's tile.

#include "kernels/cuda/attention/attention_head.cuh"
#include "kernels/cuda/common/rows.cuh"

#include <cmath>

namespace plimsoll::cuda {

inline constexpr int row_lanes = 8;

// Heads of up to D elements, in tiles of `rows`; rows are padded so that eight of them lie in different banks.
template <int D>
struct Tile {
  static constexpr int rows = D > 128 ? 16 : 32;
  static constexpr int pitch = D + 4;
  static constexpr int floats = rows * pitch;
  static constexpr int threads = rows * row_lanes;
  static constexpr int shares = rows / row_lanes;    // elements of the other side a thread scores
  static constexpr int quads = D / (4 * row_lanes);  // groups of four head elements a thread accumulates
  static constexpr int score_pitch = rows + 1;
  static constexpr int scores = rows * score_pitch;
};

// The columns that rows [first, first + Tile::rows) may meet, or the rows that such columns may: from `first`, at a
// border of tiles, to before `end`.
struct Others {
  int64_t first, end;
};
template <int D>
__device__ Others columns_met(const AttentionShape& n, int64_t first) {
  const int64_t last = first + Tile<D>::rows - 1;
  Others met{0, n.columns};
  if (n.causal) met.end = min(met.end, last + 1);
  if (n.window > 0)
    met = {max(first - n.window + 1, int64_t{0}) / Tile<D>::rows * Tile<D>::rows, min(met.end, last + n.window)};
  return met;
}
template <int D>
__device__ Others rows_met(const AttentionShape& n, int64_t first) {
  const int64_t last = first + Tile<D>::rows - 1;
  Others met{n.causal ? first : 0, n.rows};
  if (n.window > 0)
    met = {max(first - n.window + 1, met.first) / Tile<D>::rows * Tile<D>::rows, min(met.end, last + n.window)};
  return met;
}

// Rows [first, first + Tile::rows) of a head in f32; what lies outside is 0. Neighbouring rows are `stride` apart.
template <int D, typename T>
__device__ void load_tile(float* tile, const T* head, int64_t stride, int64_t first, int64_t rows, int64_t depth) {
  for (int i = static_cast<int>(threadIdx.x); i < Tile<D>::rows * D; i += Tile<D>::threads) {
    const int row = i / D, d = i % D;
    const bool inside = first + row < rows && d < depth;
    tile[row * Tile<D>::pitch + d] = inside ? widen(head[(first + row) * stride + d]) : 0.0f;
  }
}

// products[j] = own row . row lane + 8 j of the other tile
template <int D>
__device__ void multiply_rows(float (&products)[Tile<D>::shares], const float* own, const float* other, int64_t depth) {
  const int row = static_cast<int>(threadIdx.x) / row_lanes, lane = static_cast<int>(threadIdx.x) % row_lanes;
#pragma unroll
  for (int j = 0; j < Tile<D>::shares; ++j) products[j] = 0.0f;
  for (int d = 0; d < depth; d += 4) {
    const float4 a = *reinterpret_cast<const float4*>(own + row * Tile<D>::pitch + d);
#pragma unroll
    for (int j = 0; j < Tile<D>::shares; ++j) {
      const float4 b = *reinterpret_cast<const float4*>(other + (lane + row_lanes * j) * Tile<D>::pitch + d);
      products[j] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
  }
}

// sums += weights[own row, :] * other tile; a thread has the head elements 4 * (lane + 8 i) and the three after.
template <int D>
__device__ void add_weighted(float4 (&sums)[Tile<D>::quads], const float* weights, const float* other) {
  const int row = static_cast<int>(threadIdx.x) / row_lanes, lane = static_cast<int>(threadIdx.x) % row_lanes;
  for (int c = 0; c < Tile<D>::rows; ++c) {
    const float weight = weights[row * Tile<D>::score_pitch + c];
#pragma unroll
    for (int i = 0; i < Tile<D>::quads; ++i) {
      const float4 b = *reinterpret_cast<const float4*>(other + c * Tile<D>::pitch + 4 * (lane + row_lanes * i));
      sums[i].x += weight * b.x;
      sums[i].y += weight * b.y;
      sums[i].z += weight * b.z;
      sums[i].w += weight * b.w;
    }
  }
}

template <int D, typename T>
__device__ void store_row(T* row, const float4 (&sums)[Tile<D>::quads], float factor, int64_t depth) {
  const int lane = static_cast<int>(threadIdx.x) % row_lanes;
#pragma unroll
  for (int i = 0; i < Tile<D>::quads; ++i) {
    const float values[4] = {sums[i].x, sums[i].y, sums[i].z, sums[i].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int d = 4 * (lane + row_lanes * i) + e;
      if (d < depth) row[d] = narrow<T>(values[e] * factor);
    }
  }
}

// Calls launch with the smallest tile that holds the heads.
template <typename Launch>
cudaError_t with_tile(const AttentionShape& shape, Launch launch) {
  const int64_t depth = shape.depth > shape.value_depth ? shape.depth : shape.value_depth;
  if (depth <= 64) return launch(std::integral_constant<int, 64>());
  if (depth <= 128) return launch(std::integral_constant<int, 128>());
  return launch(std::integral_constant<int, 256>());
}

// Launches a kernel whose tiles need more shared memory than a block gets unasked.
template <typename Kernel, typename... Args>
cudaError_t launch_tiles(Kernel kernel, int64_t blocks, int threads, size_t floats, cudaStream_t stream, Args... args) {
  const auto bytes = static_cast<int>(floats * sizeof(float));
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(blocks), threads, static_cast<size_t>(bytes), stream>>>(args...);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
