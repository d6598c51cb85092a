#pragma once

// Tiles of images with channels last in shared memory, in units of 16 bytes.

#include "kernels/cuda/common/tensor_core.cuh"
#include "kernels/cuda/conv/grouped_sizes.h"

namespace plimsoll::cuda {

// Numbers that were put together into one, by how many values each has; those put last come first.
struct Digits {
  unsigned rest;
  __device__ int take(int count) {
    const unsigned of = rest / static_cast<unsigned>(count), digit = rest - of * static_cast<unsigned>(count);
    rest = of;
    return static_cast<int>(digit);
  }
};

// A tile's image, and its first pixel there.
struct TilePlace {
  int image, first[2];

  __device__ TilePlace(const PixelTiles& t, int item) {
    Digits digits{static_cast<unsigned>(item)};
    for (int d = 1; d >= 0; --d) first[d] = digits.take(t.tiles[d]) * t.tile[d];
    image = static_cast<int>(digits.rest);
  }
};

// A rectangle of pixels of one image, some of which may lie outside and are zeros, and units of their channels.
struct ImageTile {
  int first[2], size[2];   // pixels
  int pixels[2];           // of the image
  int64_t image_channels;  // from one pixel to the next in memory
  int units;               // of a pixel in the tile
  int pixel_units;         // from one pixel to the next in shared memory
};

// The units of a tile's pixels, row by row, that a thread of a block visits: every blockDim.x-th, found without
// divisions but for the first.
class TileWalk {
 public:
  int down, across, unit;

  __device__ TileWalk(int width, int units) : width_(width), units_(units) {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    pixel_step_ = threads / units;
    unit_step_ = threads - pixel_step_ * units;
    const int pixel = thread / units;
    unit = thread - pixel * units;
    down = pixel / width;
    across = pixel - down * width;
  }
  __device__ void next() {
    unit += unit_step_;
    across += pixel_step_;
    if (unit >= units_) unit -= units_, ++across;
    while (across >= width_) across -= width_, ++down;
  }

 private:
  int width_, units_, pixel_step_, unit_step_;
};

// Starts the copies of a tile by all threads of a block. `image` points at the first channel of the tile in the image's
// first pixel.
template <typename T>
__device__ void copy_tile_async(uint4* to, const T* image, const ImageTile& t) {
  for (TileWalk at(t.size[1], t.units); at.down < t.size[0]; at.next()) {
    const int y = t.first[0] + at.down, x = t.first[1] + at.across;
    const bool inside = y >= 0 && y < t.pixels[0] && x >= 0 && x < t.pixels[1];
    const T* from =
        inside ? image + (int64_t{y} * t.pixels[1] + x) * t.image_channels + at.unit * unit_channels : image;
    copy_async(to + (at.down * t.size[1] + at.across) * t.pixel_units + at.unit, from, inside);
  }
}

}  // namespace plimsoll::cuda
