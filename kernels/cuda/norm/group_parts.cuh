#pragma once

// Group norms by parts: where a thread of a part works, and where partials of a channel lie.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/norm/channel_tiles.cuh"
#include "kernels/cuda/norm/group_norm.cuh"
#include "kernels/cuda/norm/group_parts.h"

namespace plimsoll::cuda {

inline ChannelShape channels_of(const GroupShape& shape) {
  return {shape.batch, shape.channels, shape.inner, shape.channels_last};
}

// Block x is a plane's tile of columns, block y a part of its rows, every gridDim.y-th tile of them.
inline TileGrid grid_of(const GroupParts& p) {
  return {dim3(static_cast<unsigned>(p.planes * p.column_blocks), static_cast<unsigned>(p.parts)),
          dim3(static_cast<unsigned>(p.across), static_cast<unsigned>(p.down()))};
}

// A thread's access of n elements in a row, and the rows it goes down.
template <int n>
struct PlaceInPart {
  uint32_t plane, row, step, rows;
  int64_t column, width;  // column: of the access; width: elements of a row
  bool is_inside;

  __device__ explicit PlaceInPart(const GroupParts& p)
      : plane(blockIdx.x / static_cast<uint32_t>(p.column_blocks)),
        row(blockIdx.y * blockDim.y + threadIdx.y),
        step(gridDim.y * blockDim.y),
        rows(static_cast<uint32_t>(p.inner / p.positions)),
        column(int64_t{blockIdx.x - plane * static_cast<uint32_t>(p.column_blocks)} * blockDim.x + threadIdx.x),
        width(p.positions * p.channels),
        is_inside(column * n < width) {}

  // Of the access in that row.
  __device__ int64_t at(uint32_t of_row) const { return (int64_t{plane} * rows + of_row) * width + column * n; }
  // visit(i, channel, group): of the access's elements; groups are those of all samples.
  template <typename Visit>
  __device__ void for_channels(const GroupParts& p, const GroupShape& shape, Visit visit) const {
    const auto channels = static_cast<uint32_t>(p.channels), run = static_cast<uint32_t>(shape.channels_per_group());
    auto channel = static_cast<uint32_t>(column * n) % channels;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (shape.channels_last)
        visit(i, channel, int64_t{plane} * shape.groups + channel / run);
      else
        visit(i, plane % static_cast<uint32_t>(shape.channels), plane / run);
      channel = channel + 1 == channels ? 0 : channel + 1;
    }
  }
  // Of the block's first partial of this column; a plane of one channel has one in each block.
  __device__ int64_t partial(const GroupParts& p) const {
    const int64_t block = int64_t{plane} * gridDim.y + blockIdx.y;
    return p.channels == 1 ? block : block * width + column * n;
  }
  // Of the block.
  __device__ uint32_t all_rows() const {
    const uint32_t down = blockDim.y, tiles = (rows + down - 1) / down;
    const uint32_t own = (tiles - blockIdx.y + gridDim.y - 1) / gridDim.y * down;
    return (tiles - 1) % gridDim.y == blockIdx.y ? own - (tiles * down - rows) : own;
  }
};

// Adds up the sums of a block's threads by channel, and calls store(i, sum) for element i of an access: for the first
// one alone where all are of one channel.
template <int n, typename Store>
__device__ void add_up_part(const GroupParts& p, const PlaceInPart<n>& place, GradSums (&sums)[n], Store store) {
  if (p.channels == 1) {
    GradSums of_channel[1] = {sums[0]};
#pragma unroll
    for (int i = 1; i < n; ++i) of_channel[0] = of_channel[0] + sums[i];
    combine_down<block_threads>(of_channel, Add());
    if (threadIdx.y == 0 && place.is_inside) store(0, of_channel[0]);
    return;
  }
  combine_down<block_threads>(sums, Add());
  if (threadIdx.y != 0 || !place.is_inside) return;
#pragma unroll
  for (int i = 0; i < n; ++i) store(i, sums[i]);
}

// Of partial k of channel c of a group.
__device__ inline int64_t partial_of(const GroupParts& p, const GroupShape& shape, int64_t group, int64_t c,
                                     int64_t k) {
  const int64_t count = p.partials(), run = shape.channels_per_group();
  if (!shape.channels_last) return (group * run + c) * count + k;
  return (group / shape.groups * count + k) * shape.channels + group % shape.groups * run + c;
}

// Calls body with an integral constant, the elements of an access, and with the activation as one.
template <typename T, int64_t access_bytes, typename Body>
void with_part_kernel(const GroupParts& p, NormActivation activation, Body body) {
  const auto with_activation = [&](auto constant) {
    p.is_whole() ? body(std::integral_constant<int, static_cast<int>(access_bytes / sizeof(T))>(), constant)
                 : body(std::integral_constant<int, 1>(), constant);
  };
  switch (activation) {
    case NormActivation::Relu: return with_activation(std::integral_constant<NormActivation, NormActivation::Relu>());
    case NormActivation::Silu: return with_activation(std::integral_constant<NormActivation, NormActivation::Silu>());
    default: return with_activation(std::integral_constant<NormActivation, NormActivation::None>());
  }
}

}  // namespace plimsoll::cuda
