#pragma once

// What depthwise convolutions over runs of rows share: planes that are filled with them.

#include "kernels/cuda/conv/depthwise_planes.cuh"
#include "kernels/cuda/conv/depthwise_rows.cuh"
#include "kernels/cuda/conv/depthwise_runs.h"

namespace plimsoll::cuda {

// A lane's pixels in a unit of the rows of planes, which has 8 columns of one of the images side by side: `units` units
// of the block's channels, `image_units` units of columns of an image.
template <typename T>
__device__ PixelColumn<T> pixels_of_unit(T* tensor, const int (&image)[2], const DepthwiseRuns& p, int unit,
                                         int image_units, int first_x, int width, int units, int first_channel,
                                         int batch) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, side = unit / image_units;
  const int of_image = (unit - side * image_units) * unit_channels + lane / 4;
  return PixelColumn<T>(tensor, image, side, first_x + of_image, of_image < width && lane % 4 < units, batch,
                        p.units * unit_channels, first_channel + lane % 4 * unit_channels);
}

// The unit of a plane's rows that a warp works on, and which rows: in turn with the other warps of that unit.
struct WarpUnit {
  int unit, first, step;

  __device__ WarpUnit(int units, int warps) {
    const int warp = static_cast<int>(threadIdx.x) / warp_threads, number = warp / units;
    step = warps / units;
    unit = warp - number * units;
    first = number < step ? number : DepthwiseRuns::step_rows;
  }
};

// Rows of a tensor on their way into planes: a lane turns into rows of planes what it has copied itself.
template <typename T>
struct PlaneRows {
  WarpUnit at;
  PixelColumn<const T> pixels;
  int line, row_units;    // line: elements of a row of the tensor
  uint4 *copied, *plane;  // the lane's, of the first row

  __device__ PlaneRows(const WarpUnit& place, const PixelColumn<const T>& column, int of_line, int units, uint4* stage,
                       uint4* planes, int plane_units)
      : at(place), pixels(column), line(of_line), row_units(units) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    copied = stage + at.unit * warp_threads + lane;
    plane = planes + lane * plane_units + at.unit;
  }
  __device__ uint4* vector(int row) const { return copied + row * row_units * warp_threads; }
  __device__ void copy(int row, int numbers) const {
    const int number = __shfl_sync(whole_warp, numbers, row);
    copy_in_line_async(vector(row), pixels.at(number, line), pixels.has(number));
  }
  __device__ void copy_all(int numbers) const {
    for (int row = at.first; row < DepthwiseRuns::step_rows; row += at.step) copy(row, numbers);
  }
  __device__ void put(uint4* to, const uint4& from) const {
    store_matrices_transposed<4>(to, {from.x, from.y, from.z, from.w});
  }
  // Loads the rows above the first step's, of which there are `count`.
  template <int count>
  __device__ void load_above(uint4 (&above)[count], int numbers) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int row = at.first + i * at.step, number = __shfl_sync(whole_warp, numbers, row);
      const bool here = row < count && pixels.has(number);
      above[i] = here ? __ldg(reinterpret_cast<const uint4*>(pixels.at(number, line))) : uint4{0, 0, 0, 0};
    }
  }
  template <int count>
  __device__ void put_above(const uint4 (&above)[count]) const {
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (const int row = at.first + i * at.step; row < count) put(plane + row * row_units, above[i]);
  }
};

// What the last spot of a plane's last row reads behind it times zeros must be numbers.
__device__ inline void clear_ends(uint4* planes, int plane_units, int used_units) {
  for (int slot = static_cast<int>(threadIdx.x); slot < DepthwiseRuns::slots; slot += static_cast<int>(blockDim.x))
    for (int i = used_units; i < plane_units; ++i) planes[slot * plane_units + i] = uint4{0, 0, 0, 0};
}

// Where a spot of a product's operand lies: parts of a step's rows, images and spots there, in this order. Spots that
// are not there repeat the first.
struct SpotPlace {
  bool valid;
  int row, spot, unit;  // row: of the step; spot: of the row

  __device__ SpotPlace(const DepthwiseRuns& p, int number, int part_rows) {
    const int part = number / p.spots();
    valid = part < p.parts;
    row = valid ? part * part_rows : 0;
    spot = valid ? number - part * p.spots() : 0;
    const int image = spot / p.image_spots;
    unit = image * p.image_units + spot - image * p.image_spots;
  }
};

// Calls visit with half the rows of a part as a constant.
template <typename Visit>
cudaError_t with_row_pairs(const DepthwiseRuns& p, Visit visit) {
  switch (DepthwiseRuns::step_rows / p.parts / 2) {
    case 1: return visit(std::integral_constant<int, 1>());
    case 2: return visit(std::integral_constant<int, 2>());
    case 4: return visit(std::integral_constant<int, 4>());
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace plimsoll::cuda
