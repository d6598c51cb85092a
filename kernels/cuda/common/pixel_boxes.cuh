#pragma once

// Boxes of neighbouring pixels of images with channels last.

#include "kernels/cuda/common/box_copy.cuh"

namespace plimsoll::cuda {

// A tensor of 16-bit elements [batch, rows, columns, channels], channels a multiple of 8: boxes have `box_channels`
// channels of `box_columns` pixels of a row, one pixel after the other. What lies outside the image becomes 0. copy_box
// is given the first channel, the column, the row and the image.
[[nodiscard]] cudaError_t map_pixels(CUtensorMap& map, const void* tensor, int64_t batch, int64_t rows, int64_t columns,
                                     int64_t channels, int box_channels, int box_columns);

}  // namespace plimsoll::cuda
