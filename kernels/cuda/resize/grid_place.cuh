#pragma once

// From the numbers of a grid to the pixels that a sample reads.

#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/resize/grid_sample.h"

namespace plimsoll::cuda {

// Two neighbouring pixels along a dimension, of which those outside the image read zeros: the first weighs 1 - share
// and the second share, of which the coordinate changes `slope` a unit.
struct PixelPair {
  int first;
  float share, slope;
};

struct SampledAxis {
  int size;
  float scale, low;  // pixels a unit of the coordinate; where coordinate -1 lies
  SampledAs mode;
  SampledOutside padding;

  SampledAxis(const GridSamples& shape, int64_t pixels)
      : size(static_cast<int>(pixels)),
        scale(0.5f * static_cast<float>(shape.align_corners ? pixels - 1 : pixels)),
        low(shape.align_corners ? 0.0f : -0.5f),
        mode(shape.mode),
        padding(shape.padding) {}

  // A place that is no number fails every comparison.
  __device__ PixelPair operator()(float coordinate) const {
    float at = (coordinate + 1) * scale + low, slope = scale;
    if (padding == SampledOutside::Reflection) {
      const float span = 2 * scale, distance = fabsf(at - low);
      if (at < low) slope = -slope;
      const float folds = span > 0 ? floorf(distance / span) : 0, rest = distance - folds * span;
      const bool comes_back = fmodf(folds, 2.0f) != 0;
      at = comes_back ? low + span - rest : low + rest;
      if (comes_back) slope = -slope;
    }
    if (padding != SampledOutside::Zeros) {
      const auto last = static_cast<float>(size - 1);
      if (!(at > 0 && at < last)) slope = 0;
      at = at > 0 ? fminf(at, last) : 0;
    }
    if (!(at > -1 && at < static_cast<float>(size))) return {-2, 0, 0};
    if (mode == SampledAs::Nearest) return {static_cast<int>(rintf(at)), 0, 0};
    const float before = floorf(at);
    return {static_cast<int>(before), at - before, slope};
  }
};

struct SampledPlaces {
  SampledAxis columns, rows;
  const void* grid;
  Scalar grid_type;

  SampledPlaces(const GridSamples& shape, const void* grid_data)
      : columns(shape, shape.width), rows(shape, shape.height), grid(grid_data), grid_type(shape.grid_type) {}

  __device__ float2 coordinates(int64_t sample) const {
    if (grid_type == Scalar::F32) return static_cast<const float2*>(grid)[sample];
    const AnyTensor numbers{grid, grid_type};
    return {static_cast<float>(load_any<double>(numbers, 2 * sample)),
            static_cast<float>(load_any<double>(numbers, 2 * sample + 1))};
  }
};

// Calls visit(T*, length) with the elements of an access that divides the channels.
template <typename Visit>
cudaError_t with_channel_runs(Scalar type, int64_t channels, Visit visit) {
  return with_f32_math(type, [&]<typename T>(T* element) {
    constexpr int whole = 16 / static_cast<int>(sizeof(T));
    if (channels % whole == 0)
      return error_of(visit, element, static_cast<std::integral_constant<int, whole>*>(nullptr));
    if (channels % 2 == 0) return error_of(visit, element, static_cast<std::integral_constant<int, 2>*>(nullptr));
    return error_of(visit, element, static_cast<std::integral_constant<int, 1>*>(nullptr));
  });
}

}  // namespace plimsoll::cuda
