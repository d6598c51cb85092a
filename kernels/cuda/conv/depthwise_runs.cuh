#pragma once

// What depthwise convolutions over runs of rows share: boxes of the run's rows, and planes that are filled with them.

#include "kernels/cuda/common/pixel_boxes.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/depthwise_planes.cuh"
#include "kernels/cuda/conv/depthwise_runs.h"

namespace plimsoll::cuda {

// A row of the run: its images, and the row there, of which those from the image's end on are zeros.
struct RowOfRun {
  int group, y;

  __device__ RowOfRun(const DepthwiseRuns& p, int row) {
    group = static_cast<int>(static_cast<unsigned>(row) / static_cast<unsigned>(p.row_period));
    y = row - group * p.row_period;
  }
  __device__ void advance(const DepthwiseRuns& p, int rows) {
    y += rows;
    while (y >= p.row_period) y -= p.row_period, ++group;
  }
};

// The columns of a tile in its tensor, whose first rows are zeros where `first_row` is negative.
struct RowBoxes {
  const CUtensorMap& map;
  int first_channel, first_column, first_row, columns;  // columns: of an image

  // Starts the copies of rows of the run, by the threads of one warp.
  __device__ void start(uint4* stage, const DepthwiseRuns& p, int row, int rows, Barrier* barrier) const {
    const int box_units = columns * DepthwiseRuns::block_units;
    for (int i = static_cast<int>(threadIdx.x) % warp_threads; i < rows * p.images; i += warp_threads) {
      const int down = i / p.images, image = i - down * p.images;
      const RowOfRun from(p, row + down);
      copy_box(stage + i * box_units, map, first_channel, first_column, from.y + first_row,
               from.group * p.images + image, barrier);
    }
  }
  __device__ int bytes(const DepthwiseRuns& p, int rows) const {
    return rows * p.images * columns * DepthwiseRuns::slots * 2;
  }
};

// A walk over units of rows of a ring: every warp-th unit of the rows from `row` on, row by row.
struct RingWalk {
  int row, unit;

  __device__ RingWalk(int first_row, int row_units, int ring) : row(first_row), unit(0) {
    advance(static_cast<int>(threadIdx.x) / warp_threads, row_units, ring);
  }
  // Gives the rows that were gone down.
  __device__ int advance(int units, int row_units, int ring) {
    int down = 0;
    unit += units;
    while (unit >= row_units) unit -= row_units, ++down;
    row += down;
    while (row >= ring) row -= ring;
    return down;
  }
};

// Turns `rows` rows of a stage into rows of the planes. `lane_plane` is the plane of this lane's slot.
template <int warps>
__device__ void fill_rows(uint4* lane_plane, const uint4* stage, int row_units, int first_row, int ring, int rows) {
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  RingWalk to(first_row, row_units, ring);
#pragma unroll 4
  for (int i = warp; i < rows * row_units; i += warps) {
    const uint4 vector = stage[i * warp_threads + lane];
    store_matrices_transposed<4>(lane_plane + to.row * row_units + to.unit, {vector.x, vector.y, vector.z, vector.w});
    to.advance(warps, row_units, ring);
  }
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
