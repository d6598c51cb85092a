#pragma once

// What forward and dw of convolutions whose taps lie in planes have in common: slices of the runs of an image in shared
// memory, and the order of 16 channels in products.

#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/cuda/conv/plane_taps.h"

namespace plimsoll::cuda {

// Of a result's 16 numbers a thread of a warp has four that lie side by side, so columns 2 t and 2 t + 1 of two
// products are channels 4 t to 4 t + 3: this is the channel of column c of product `half`.
__device__ inline int channel_of_column(int c, int half) { return c / 2 * 4 + half * 2 + c % 2; }

// The slice of a block's image, without the numbers in front of it.
struct PlaneSlice {
  int image, first;  // first: number of the runs

  __device__ PlaneSlice(const PlaneTaps& p, int item)
      : image(item / (p.run / p.slice())), first(item % (p.run / p.slice()) * p.slice()) {}

  // Of images [images, x..., run]; the caller waits for the copies.
  template <typename T>
  __device__ void copy(T* to, const T* x, const PlaneTaps& p) const {
    constexpr int unit = 8;
    const int units = p.slice() / unit, all = p.slice_rows() * p.slice_pitch() * units;
    const T* from = x + int64_t{image} * p.x[0] * p.x[1] * p.run + first;
    for (int i = static_cast<int>(threadIdx.x); i < all; i += PlaneTaps::threads) {
      const int pixel = i / units, number = i % units * unit;
      const int row = pixel / p.slice_pitch() - p.pad[0], column = pixel % p.slice_pitch() - p.pad[1];
      const bool inside = row >= 0 && row < p.x[0] && column >= 0 && column < p.x[1];
      copy_async(to + pixel * PlaneTaps::pitch_of(p.slice()) + number,
                 inside ? from + (int64_t{row} * p.x[1] + column) * p.run + number : x, inside);
    }
    commit_copies();
  }
};

// Where this thread's rows of four matrices of 8 x 8 begin, from the first tap's number on: matrices are of taps 0 to 7
// and 8 to 15 of a tile by numbers 0 to 7 and 8 to 15 of a run. Taps that are not there read tap 0, whose weights there
// are zeros.
template <int tap_tiles>
struct TapPlaces {
  int at[tap_tiles];

  __device__ explicit TapPlaces(const PlaneTaps& p) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, matrix = lane / 8;
#pragma unroll
    for (int t = 0; t < tap_tiles; ++t) {
      const int tap = t * 16 + matrix / 2 * 8 + lane % 8, there = tap < p.taps() ? tap : 0;
      at[t] = (there / p.kernel[1] * p.slice_pitch() + there % p.kernel[1]) * PlaneTaps::pitch_of(p.slice()) +
              matrix % 2 * 8;
    }
  }
};

// The pixels of y that a warp has, in steps of some: warps share a pixel where a slice has several tiles.
struct WarpPixels {
  int number;       // of the slice, where the warp's tile begins
  int pixel, step;  // of y
  int column, at;   // at: where the taps of this pixel and tile begin in the slice
  int width, pitch, to_next_row;

  __device__ explicit WarpPixels(const PlaneTaps& p) {
    const int warp = static_cast<int>(threadIdx.x) / warp_threads, tiles = p.slice() / PlaneTaps::tile;
    number = warp % tiles * PlaneTaps::tile, pixel = warp / tiles, step = PlaneTaps::warps / tiles;
    width = p.y[1], pitch = PlaneTaps::pitch_of(p.slice()), to_next_row = (p.slice_pitch() - width) * pitch;
    column = pixel, at = pixel * pitch + number;
    wrap();
  }
  __device__ void next() {
    pixel += step, column += step, at += step * pitch;
    wrap();
  }

 private:
  __device__ void wrap() {
    while (column >= width) column -= width, at += to_next_row;
  }
};

}  // namespace plimsoll::cuda
