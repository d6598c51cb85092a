#pragma once

// Scales a region of each of several images of bytes to one size: what runtime/data/image.h's sample_image() does, up
// to the rounding of sums. A triangle as wide as two shown pixels, and at least two source pixels, averages along each
// side.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace plimsoll::cuda {

inline constexpr int max_sampled_images = 16;

struct SampledImage {
  const uint8_t* pixels = nullptr;  // [height][width][3]
  int width = 0, height = 0;
  double region_x = 0, region_y = 0, region_width = 0, region_height = 0;  // in pixels
  bool mirrored = false;
};

struct SampledImages {
  SampledImage image[max_sampled_images];
  int count = 0;
  int shown_width = 0, shown_height = 0;
};

// planes [count][3][shown_height][shown_width] in [0, 1].
[[nodiscard]] cudaError_t sample_images(float* planes, const SampledImages& images, cudaStream_t stream);

}  // namespace plimsoll::cuda
