#include "kernels/cuda/resize/sample_images.h"

#include <algorithm>

// A thread makes one shown pixel: it reads the source pixels under its triangle once, and neighbours find most of them
// in the cache. Reads about (2 * region / shown)^2 pixels of 3 bytes for each 12 bytes written; beside the decoding of
// the same images that is little.

namespace plimsoll::cuda {
namespace {

constexpr int block_width = 32, block_height = 8;

// Source pixels first to first + count - 1 along one side; that at k weighs 1 - |start + k| * slope, as far as above 0.
struct Taps {
  int first, count;
  float start, slope, total;

  __device__ float weight(int k) const { return fmaxf(0.0F, 1.0F - fabsf(start + static_cast<float>(k)) * slope); }
};

__device__ Taps taps_at(int shown, double region, double length, int shown_size, int size) {
  const double scale = length / shown_size, support = fmax(scale, 1.0);
  const double center = region + (shown + 0.5) * scale;
  Taps taps;
  taps.first = min(max(static_cast<int>(center - support + 0.5), 0), size - 1);
  taps.count = min(max(static_cast<int>(center + support + 0.5), taps.first + 1), size) - taps.first;
  taps.start = static_cast<float>(taps.first + 0.5 - center);
  taps.slope = static_cast<float>(1 / support);
  taps.total = 0;
  for (int k = 0; k < taps.count; ++k) taps.total += taps.weight(k);
  if (taps.total > 0) return taps;
  taps.count = 1;  // the nearest pixel alone
  taps.start = 0;
  taps.total = 1;
  return taps;
}

__global__ void __launch_bounds__(block_width* block_height) sample_images_kernel(float* planes, SampledImages images) {
  const int x = static_cast<int>(blockIdx.x * block_width + threadIdx.x);
  const int y = static_cast<int>(blockIdx.y * block_height + threadIdx.y);
  if (x >= images.shown_width || y >= images.shown_height) return;
  const SampledImage& image = images.image[blockIdx.z];
  const Taps across = taps_at(x, image.region_x, image.region_width, images.shown_width, image.width);
  const Taps down = taps_at(y, image.region_y, image.region_height, images.shown_height, image.height);
  float red = 0, green = 0, blue = 0;
  for (int j = 0; j < down.count; ++j) {
    const uint8_t* pixel = image.pixels + 3 * (int64_t{down.first + j} * image.width + across.first);
    const float row_weight = down.weight(j);
    for (int i = 0; i < across.count; ++i, pixel += 3) {
      const float weight = row_weight * across.weight(i);
      red += weight * static_cast<float>(pixel[0]);
      green += weight * static_cast<float>(pixel[1]);
      blue += weight * static_cast<float>(pixel[2]);
    }
  }
  const float white = 1.0F / (255.0F * across.total * down.total);
  const int64_t plane = int64_t{images.shown_width} * images.shown_height;
  const int shown_x = image.mirrored ? images.shown_width - 1 - x : x;
  float* shown = planes + 3 * plane * blockIdx.z + int64_t{y} * images.shown_width + shown_x;
  shown[0] = white * red;
  shown[plane] = white * green;
  shown[2 * plane] = white * blue;
}

}  // namespace

cudaError_t sample_images(float* planes, const SampledImages& images, cudaStream_t stream) {
  if (images.count == 0) return cudaSuccess;
  const dim3 blocks((images.shown_width + block_width - 1) / block_width,
                    (images.shown_height + block_height - 1) / block_height, images.count);
  sample_images_kernel<<<blocks, dim3(block_width, block_height), 0, stream>>>(planes, images);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
