#pragma once

// Walks over [batch, channels, inner] and [batch, inner, channels] as a matrix whose rows repeat the channels: a thread
// owns one access of a row, hence its channels, and goes down the rows.

#include "kernels/cuda/common/partials.h"
#include "kernels/cuda/common/rows.cuh"

namespace plimsoll::cuda {

enum class ChannelOrder : uint8_t { First, Last };

struct ChannelMatrix {
  int64_t rows, columns;       // columns in accesses of `length` elements
  int64_t accesses_per_plane;  // with channels first
  int64_t channels;

  ChannelMatrix(const ChannelShape& shape, int64_t length)
      : rows(shape.channels_last ? shape.per_channel() : shape.batch),
        columns(shape.channels_last ? shape.channels / length : shape.channels * (shape.inner / length)),
        accesses_per_plane(shape.inner / length),
        channels(shape.channels) {}
};

// The channels of one access: as many as it has elements when they come last, otherwise one.
template <ChannelOrder order, int n>
struct ChannelsOf {
  static constexpr int count = order == ChannelOrder::Last ? n : 1;
  int64_t first;

  __device__ ChannelsOf(const ChannelMatrix& matrix, int64_t column)
      : first(order == ChannelOrder::Last
                  ? column * n
                  : static_cast<uint32_t>(column) / static_cast<uint32_t>(matrix.accesses_per_plane)) {}
  __device__ void load(float (&to)[count], const float* of_channels) const {
#pragma unroll
    for (int i = 0; i < count; ++i) to[i] = of_channels[first + i];
  }
};

// Blocks of ColumnTiles: x for columns, y for rows.
struct TileGrid {
  dim3 grid, block;
  explicit TileGrid(const ColumnTiles& tiles)
      : grid(static_cast<unsigned>(tiles.column_blocks), static_cast<unsigned>(tiles.row_blocks)),
        block(static_cast<unsigned>(tiles.across), static_cast<unsigned>(tiles.down())) {}
  TileGrid(dim3 grid, dim3 block) : grid(grid), block(block) {}
};

// A first pass over x, which leaves partials [parts, channels]: with channels last, tiles of the matrix; otherwise
// block x is a channel and block y a part of its accesses.
template <ChannelOrder order>
TileGrid first_pass_grid(const ChannelMatrix& matrix, int64_t parts) {
  if (order == ChannelOrder::Last) return TileGrid(statistics_tiles(matrix.rows, matrix.columns));
  return {dim3(static_cast<unsigned>(matrix.channels), static_cast<unsigned>(parts)), dim3(256)};
}

// A last pass over x: with channels last its blocks, all there at once, go from the last row to the first, because what
// the pass before read last is still in the cache.
template <ChannelOrder order>
TileGrid last_pass_grid(const ChannelMatrix& matrix) {
  return TileGrid(ColumnTiles(matrix.rows, matrix.columns, order == ChannelOrder::Last ? one_wave : 5 * one_wave));
}

// Combines the values of a block's threads over threadIdx.y in a fixed order; threads of y = 0 get the totals.
// blockDim.y is a power of 2.
template <int threads, int n, typename V, typename Combine>
__device__ void combine_down(V (&values)[n], Combine combine) {
  __shared__ V of_threads[n][threads / 2];
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y >= half && threadIdx.y < 2 * half)
#pragma unroll
      for (int i = 0; i < n; ++i) of_threads[i][(threadIdx.y - half) * blockDim.x + threadIdx.x] = values[i];
    __syncthreads();
    if (threadIdx.y < half)
#pragma unroll
      for (int i = 0; i < n; ++i) values[i] = combine(values[i], of_threads[i][threadIdx.y * blockDim.x + threadIdx.x]);
  }
}

// The second stage, on merge_grid: partials [parts, channels], blocks of merge_across * merge_down threads for
// merge_across channels. Threads of y = 0 get the total of channel c, which may be past the last one.
inline constexpr int merge_across = 8, merge_down = 128;

inline TileGrid merge_grid(int64_t channels) {
  return {dim3(static_cast<unsigned>(divide_up(channels, merge_across))), dim3(merge_across, merge_down)};
}

template <typename V, typename Combine>
__device__ V combine_parts(const V* partials, int64_t parts, int64_t channels, int64_t c, Combine combine, V empty) {
  constexpr int in_flight = 4;
  V total[1] = {empty};
  if (c < channels) {
    for (int64_t part = threadIdx.y; part < parts; part += in_flight * merge_down) {
      V loaded[in_flight];
#pragma unroll
      for (int k = 0; k < in_flight; ++k)
        loaded[k] = part + k * merge_down < parts ? partials[(part + k * merge_down) * channels + c] : empty;
#pragma unroll
      for (int k = 0; k < in_flight; ++k) total[0] = combine(total[0], loaded[k]);
    }
  }
  combine_down<merge_across * merge_down>(total, combine);
  return total[0];
}

// Calls body(integral constant of the access length, integral constant of the order); with channels last an access has
// `last_bytes`.
template <typename T, int64_t last_bytes, typename Body>
void with_channel_layout(const ChannelShape& shape, Body body) {
  const bool whole = access_length(shape, sizeof(T), last_bytes) > 1;
  using OfChannels = std::integral_constant<int, static_cast<int>(last_bytes / sizeof(T))>;
  using OfPlane = std::integral_constant<int, vector_length<T>>;
  using Single = std::integral_constant<int, 1>;
  using First = std::integral_constant<ChannelOrder, ChannelOrder::First>;
  using Last = std::integral_constant<ChannelOrder, ChannelOrder::Last>;
  if (shape.channels_last)
    whole ? body(OfChannels(), Last()) : body(Single(), Last());
  else
    whole ? body(OfPlane(), First()) : body(Single(), First());
}

}  // namespace plimsoll::cuda
