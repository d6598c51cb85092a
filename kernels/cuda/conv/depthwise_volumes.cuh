#pragma once

// What depthwise convolutions over volumes share on the device.

#include "kernels/cuda/common/byte_steps.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/conv/depthwise_volumes.h"

namespace plimsoll::cuda {

// A block's channels, rectangle and planes, and the thread's tile.
struct VolumePlace {
  int vector, lane, tile_down, tile_across, begin, end;
  int64_t image;

  // `rest` counts rectangles, then parts, then images.
  __device__ VolumePlace(const DepthwiseVolumePlan& p, int thread, int vector_block, int rest, int planes) {
    const auto take = [&](int count) {
      const int of = rest / count, index = rest - of * count;
      rest = of;
      return index;
    };
    const int tile = thread / p.vector_threads;
    lane = thread - tile * p.vector_threads;
    vector = vector_block * p.vector_threads + lane;
    const int below = tile / p.block_across;
    tile_across = take(p.across) * p.block_across + tile - below * p.block_across;
    tile_down = take(p.down) * p.block_down + below;
    begin = take(p.parts) * p.part_planes;
    end = min(begin + p.part_planes, planes);
    image = rest;
    works = tile < p.block_tiles() && vector < p.vectors;
  }
  bool works;
};

// Pixels of a tile in the planes of a tensor, those outside of which are zeros or not written.
template <typename T, int down, int across, int length>
class VolumeTilePixels {
 public:
  // size: of a tensor, in depth first. The first pixel may lie before the plane.
  __device__ VolumeTilePixels(T* tensor, int64_t image, const int (&size)[3], int first_down, int first_across,
                              int channels, int channel) {
    pixel_bytes_ = channels * static_cast<int>(sizeof(T));
    line_bytes_ = size[2] * pixel_bytes_;
    plane_bytes_ = int64_t{size[1]} * line_bytes_;
    first_ = tensor + (image * size[0] * size[1] * size[2] + int64_t{first_down} * size[2] + first_across) * channels +
             channel;
    uint32_t columns = 0;
#pragma unroll
    for (int i = 0; i < across; ++i)
      if (static_cast<unsigned>(first_across + i) < static_cast<unsigned>(size[2])) columns |= 1u << i;
#pragma unroll
    for (int i = 0; i < down; ++i)
      columns_[i] = static_cast<unsigned>(first_down + i) < static_cast<unsigned>(size[1]) ? columns : 0;
  }
  __device__ void load(Packed<std::remove_const_t<T>, length> (&to)[down][across], int plane) const {
    T* line = at_plane(plane);
#pragma unroll
    for (int i = 0; i < down; ++i, line = next_line(line)) load_line(to[i], i, line);
  }
  // Line `i` of the tile, which begins at `line`.
  __device__ void load_line(Packed<std::remove_const_t<T>, length> (&to)[across], int i, T* line) const {
#pragma unroll
    for (int j = 0; j < across; ++j)
      to[j] = (columns_[i] >> j & 1) != 0 ? load_packed<length>(step_ahead(line, j, pixel_bytes_))
                                          : Packed<std::remove_const_t<T>, length>{};
  }
  __device__ T* next_line(T* line) const { return step_ahead(line, 1, line_bytes_); }
  __device__ T* at_plane(int plane) const {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(first_) + plane * plane_bytes_);
  }
  __device__ void store(const float (&sums)[down][across][length], int plane) const {
    T* line = at_plane(plane);
#pragma unroll
    for (int i = 0; i < down; ++i, line = next_line(line))
#pragma unroll
      for (int j = 0; j < across; ++j)
        if ((columns_[i] >> j & 1) != 0) store_packed(step_ahead(line, j, pixel_bytes_), pack<T, length>(sums[i][j]));
  }

 private:
  T* first_;
  int64_t plane_bytes_;
  int line_bytes_, pixel_bytes_;
  uint32_t columns_[down];  // which pixels of a line are in the plane
};

template <typename T, int across, int length>
__device__ void widen_line(float (&to)[across][length], const Packed<T, length> (&from)[across]) {
#pragma unroll
  for (int j = 0; j < across; ++j)
#pragma unroll
    for (int k = 0; k < length; ++k) to[j][k] = from[j][k];
}
template <typename T, int down, int across, int length>
__device__ void widen_all(float (&to)[down][across][length], const Packed<T, length> (&from)[down][across]) {
#pragma unroll
  for (int i = 0; i < down; ++i) widen_line(to[i], from[i]);
}

template <typename E, int down, int across>
__device__ void copy_all(E (&to)[down][across], const E (&from)[down][across]) {
#pragma unroll
  for (int i = 0; i < down; ++i)
#pragma unroll
    for (int j = 0; j < across; ++j) to[i][j] = from[i][j];
}
template <int down, int across, int length>
__device__ void copy_all(float (&to)[down][across][length], const float (&from)[down][across][length]) {
#pragma unroll
  for (int i = 0; i < down; ++i)
#pragma unroll
    for (int j = 0; j < across; ++j)
#pragma unroll
      for (int k = 0; k < length; ++k) to[i][j][k] = from[i][j][k];
}
template <typename E, int down, int across>
__device__ void clear_all(E (&to)[down][across]) {
#pragma unroll
  for (auto& line : to)
#pragma unroll
    for (auto& pixel : line) pixel = E{};
}

// Calls visit with a thread's channels, the taps across, the steps and whether sums of three planes are kept as
// constants; `steps` of those that the kernel has.
template <VolumeSteps... steps, typename Visit>
cudaError_t with_volume_form(const DepthwiseVolumePlan& p, Visit visit) {
  constexpr int few = DepthwiseVolumePlan::ring_taps, many = DepthwiseVolumePlan::max_taps;
  const auto with_steps = [&](auto length, auto step) {
    if (p.tile.taps == many) return visit(length, std::integral_constant<int, many>(), step, std::false_type());
    return p.keeps_planes ? visit(length, std::integral_constant<int, few>(), step, std::true_type())
                          : visit(length, std::integral_constant<int, few>(), step, std::false_type());
  };
  cudaError_t error = cudaErrorInvalidValue;
  const auto with_length = [&](auto length) {
    const auto try_steps = [&](auto step) {
      if (p.tile.steps == step()) error = with_steps(length, step);
    };
    (try_steps(std::integral_constant<VolumeSteps, steps>()), ...);
  };
  if (p.length == 2)
    with_length(std::integral_constant<int, 2>());
  else
    with_length(std::integral_constant<int, 1>());
  return error;
}

}  // namespace plimsoll::cuda
