#pragma once

// Boxes of lines of images, whose pixels follow each other without gaps.

#include "kernels/cuda/common/box_copy.cuh"

namespace plimsoll::cuda {

// An image [batch, down, across, channels] of 16-bit elements: boxes have so many channels of so many pixels of
// so many lines, one pixel behind the other, at most 256 of each. What lies outside becomes 0; a box begins at a border
// of 128 bytes.
[[nodiscard]] cudaError_t map_line_boxes(CUtensorMap& map, const void* image, const int64_t (&sizes)[4],
                                         int box_channels, int box_pixels, int box_lines = 1);

}  // namespace plimsoll::cuda
