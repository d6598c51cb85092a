#include "kernels/cpu/resize/grid_sample.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/row_math.h"

#include <algorithm>
#include <cmath>

namespace plimsoll::cpu {
namespace {

// A pixel that a sample reads along one dimension, its weight, and what that changes with the coordinate.
struct Tap {
  int64_t index = 0;
  float weight = 0, slope = 0;
};
struct Taps {
  Tap tap[2];
  int count = 0;

  const Tap* begin() const { return tap; }
  const Tap* end() const { return tap + count; }
  void add(int64_t index, float weight, float slope, int64_t size) {
    if (index >= 0 && index < size) tap[count++] = {index, weight, slope};
  }
};

struct Place {
  float at, slope;
};

Place reflected(Place place, float low, float span) {
  const float distance = std::fabs(place.at - low), folds = span > 0 ? std::floor(distance / span) : 0;
  const float rest = distance - folds * span;
  if (place.at < low) place.slope = -place.slope;
  return std::fmod(folds, 2.0f) != 0 ? Place{low + span - rest, -place.slope} : Place{low + rest, place.slope};
}

// Those inside the image; none where the coordinate is no number.
Taps taps_at(const GridSamples& shape, float coordinate, int64_t size) {
  const auto all = static_cast<float>(size), last = static_cast<float>(size - 1);
  const float scale = (shape.align_corners ? last : all) / 2, low = shape.align_corners ? 0.0f : -0.5f;
  Place place{(coordinate + 1) * scale + low, scale};
  if (shape.padding == SampledOutside::Reflection) place = reflected(place, low, 2 * scale);
  if (shape.padding != SampledOutside::Zeros) {
    if (!(place.at > 0 && place.at < last)) place.slope = 0;
    place.at = place.at > 0 ? std::min(place.at, last) : 0;
  }
  Taps taps;
  if (!(place.at > -1 && place.at < all)) return taps;
  if (shape.mode == SampledAs::Nearest) {
    taps.add(static_cast<int64_t>(std::nearbyint(place.at)), 1, 0, size);
    return taps;
  }
  const float before = std::floor(place.at), share = place.at - before;
  const auto first = static_cast<int64_t>(before);
  taps.add(first, 1 - share, -place.slope, size);
  taps.add(first + 1, share, place.slope, size);
  return taps;
}

// visit(pixel, row, column): the number of each pixel that the sample reads, and its taps.
template <typename Visit>
void for_each_pixel(const GridSamples& shape, const float* grid, int64_t sample, Visit visit) {
  const Taps columns = taps_at(shape, grid[2 * sample], shape.width);
  const Taps rows = taps_at(shape, grid[2 * sample + 1], shape.height);
  const int64_t first = sample / shape.samples * shape.height * shape.width;
  for (const Tap& row : rows)
    for (const Tap& column : columns) visit(first + row.index * shape.width + column.index, row, column);
}

}  // namespace

void grid_sample(const GridSamples& shape, float* y, const float* x, const float* grid) {
  const int64_t channels = shape.channels;
  parallel_rows(shape.images * shape.samples, 4 * channels, [&](int64_t begin, int64_t end) {
    std::fill(y + begin * channels, y + end * channels, 0.0f);
    for (int64_t sample = begin; sample < end; ++sample)
      for_each_pixel(shape, grid, sample, [&](int64_t pixel, const Tap& row, const Tap& column) {
        add_scaled_to(y + sample * channels, x + pixel * channels, row.weight * column.weight, channels);
      });
  });
}

// Samples in their order: an image is a task's, and of a single one some channels are.
void grid_sample_dx(const GridSamples& shape, float* dx, const float* grid, const float* dy) {
  const int64_t channels = shape.channels, pixels = shape.height * shape.width;
  const auto add = [&](int64_t image, int64_t begin, int64_t end) {
    for (int64_t pixel = image * pixels; pixel < (image + 1) * pixels; ++pixel)
      std::fill(dx + pixel * channels + begin, dx + pixel * channels + end, 0.0f);
    for (int64_t sample = image * shape.samples; sample < (image + 1) * shape.samples; ++sample)
      for_each_pixel(shape, grid, sample, [&](int64_t pixel, const Tap& row, const Tap& column) {
        add_scaled_to(dx + pixel * channels + begin, dy + sample * channels + begin, row.weight * column.weight,
                      end - begin);
      });
  };
  const int64_t work = 4 * shape.samples;
  if (shape.images == 1)
    parallel_ranges(channels, work, [&](int64_t begin, int64_t end) { add(0, begin, end); });
  else
    parallel_tasks(shape.images, shape.images * channels * work, [&](int64_t image) { add(image, 0, channels); });
}

void grid_sample_dgrid(const GridSamples& shape, float* dgrid, const float* x, const float* grid, const float* dy) {
  const int64_t channels = shape.channels;
  parallel_rows(shape.images * shape.samples, 4 * channels, [&](int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; ++sample) {
      double by_column = 0, by_row = 0;
      for_each_pixel(shape, grid, sample, [&](int64_t pixel, const Tap& row, const Tap& column) {
        const double product = dot(x + pixel * channels, dy + sample * channels, channels);
        by_column += product * row.weight * column.slope;
        by_row += product * row.slope * column.weight;
      });
      dgrid[2 * sample] = static_cast<float>(by_column);
      dgrid[2 * sample + 1] = static_cast<float>(by_row);
    }
  });
}

}  // namespace plimsoll::cpu
