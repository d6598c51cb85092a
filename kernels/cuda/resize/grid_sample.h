#pragma once

// Samples of images with channels last where a grid says, bilinear or of the nearest pixel, and the gradients for image
// and grid. A grid of any numbers is valid: places outside read zeros or where padding moves them to, those that are no
// number what stands first.

#include "kernels/cuda/resize/grid_sample_sizes.h"
#include "kernels/scalar.h"

#include <cuda_runtime_api.h>

namespace plimsoll::cuda {

enum class SampledAs : uint8_t { Linear, Nearest };
enum class SampledOutside : uint8_t { Zeros, Border, Reflection };

// x [images, height, width, channels], grid [images, samples, 2] of columns and rows, y [images, samples, channels].
// Images have fewer than 2^31 - 1 pixels with a border of one around them, and fewer than 2^31 samples.
struct GridSamples {
  int64_t images, height, width, channels, samples;
  SampledAs mode;
  SampledOutside padding;
  bool align_corners;
  Scalar grid_type;  // f32 or a 16-bit float
};

[[nodiscard]] cudaError_t grid_sample(const GridSamples& shape, Scalar type, void* y, const void* x, const void* grid,
                                      cudaStream_t stream);
// dgrid has the grid's type.
[[nodiscard]] cudaError_t grid_sample_dgrid(const GridSamples& shape, Scalar type, void* dgrid, const void* x,
                                            const void* grid, const void* dy, cudaStream_t stream);
// Every pixel adds its samples in f32, in an order that the grid decides. `workspace` has the bytes of
// GridSampleWorkspace.
[[nodiscard]] cudaError_t grid_sample_dx(const GridSamples& shape, Scalar type, void* dx, const void* grid,
                                         const void* dy, void* workspace, cudaStream_t stream);

}  // namespace plimsoll::cuda
