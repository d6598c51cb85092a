#pragma once

// Samples of images with channels last where a grid says, and the gradients for image and grid. Places outside, and
// those that are no number, read zeros or where padding moves them to.

#include <cstdint>

namespace plimsoll::cpu {

enum class SampledAs : uint8_t { Linear, Nearest };
enum class SampledOutside : uint8_t { Zeros, Border, Reflection };

// x [images, height, width, channels], grid [images, samples, 2] of columns and rows, y [images, samples, channels].
struct GridSamples {
  int64_t images, height, width, channels, samples;
  SampledAs mode;
  SampledOutside padding;
  bool align_corners;
};

void grid_sample(const GridSamples& shape, float* y, const float* x, const float* grid);
void grid_sample_dx(const GridSamples& shape, float* dx, const float* grid, const float* dy);
void grid_sample_dgrid(const GridSamples& shape, float* dgrid, const float* x, const float* grid, const float* dy);

}  // namespace plimsoll::cpu
