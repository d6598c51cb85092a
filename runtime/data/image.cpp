#include "runtime/data/image.h"

#include "ir/support/strings.h"

#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {
namespace {

// The source pixels that one shown pixel averages, and their weights, which sum to 1.
struct Taps {
  int64_t first = 0;
  llvm::SmallVector<float, 8> weights;
};

// The triangle filter of Pillow's Image.resize with a box: as wide as two shown pixels, at least two source pixels.
std::vector<Taps> taps_along(double start, double length, int64_t shown, int64_t pixels) {
  const double scale = length / static_cast<double>(shown), support = std::max(scale, 1.0);
  std::vector<Taps> all(static_cast<size_t>(shown));
  for (int64_t i = 0; i < shown; ++i) {
    const double center = start + (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::clamp<int64_t>(static_cast<int64_t>(center - support + 0.5), 0, pixels - 1);
    const auto last = std::clamp<int64_t>(static_cast<int64_t>(center + support + 0.5), first + 1, pixels);
    Taps& taps = all[static_cast<size_t>(i)];
    taps.first = first;
    double sum = 0;
    for (int64_t at = first; at < last; ++at) {
      const double weight = std::max(0.0, 1 - std::abs((static_cast<double>(at) + 0.5 - center) / support));
      taps.weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    if (sum <= 0) taps.weights.assign(1, 1.0F);
    for (float& weight : taps.weights) weight = sum > 0 ? static_cast<float>(weight / sum) : weight;
  }
  return all;
}

void add_row(const uint8_t* source, float weight, int64_t count, float* row) {
  for (int64_t i = 0; i < count; ++i) row[i] += weight * static_cast<float>(source[i]);
}

// One shown row out of one row of source pixels in [0, 255].
void sample_row(const float* row, llvm::ArrayRef<Taps> columns, bool mirrored, int64_t plane, float* out) {
  constexpr float white = 1.0F / 255;
  const auto width = static_cast<int64_t>(columns.size());
  for (int64_t x = 0; x < width; ++x) {
    const Taps& taps = columns[static_cast<size_t>(x)];
    const float* pixel = row + 3 * taps.first;
    float red = 0, green = 0, blue = 0;
    for (float weight : taps.weights) {
      red += weight * pixel[0];
      green += weight * pixel[1];
      blue += weight * pixel[2];
      pixel += 3;
    }
    float* shown = out + (mirrored ? width - 1 - x : x);
    shown[0] = white * red;
    shown[plane] = white * green;
    shown[2 * plane] = white * blue;
  }
}

}  // namespace

bool is_image_name(llvm::StringRef name) {
  const std::string lower = name.lower();
  return ends_with(lower, ".jpg") || ends_with(lower, ".jpeg") || ends_with(lower, ".png");
}

Status decode_image(llvm::StringRef where, llvm::ArrayRef<uint8_t> bytes, const DecodeRequest& request, Image& into) {
  if (bytes.size() >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8) return decode_jpeg(where, bytes, request, into);
  if (bytes.size() >= 4 && bytes[0] == 0x89 && bytes[1] == 'P') return decode_png(where, bytes, request, into);
  return model_error(where + ": neither a JPEG nor a PNG image");
}

void sample_image(const Image& image, const Region& region, ImageSize size, bool mirrored, std::vector<float>& row,
                  float* planes) {
  const std::vector<Taps> columns = taps_along(region.x, region.width, size.width, image.size.width),
                          rows = taps_along(region.y, region.height, size.height, image.size.height);
  // Only source columns that are shown are averaged.
  const int64_t first = columns.front().first;
  const int64_t last = columns.back().first + static_cast<int64_t>(columns.back().weights.size());
  row.resize(static_cast<size_t>(3 * image.size.width));
  for (int64_t y = 0; y < size.height; ++y) {
    const Taps& taps = rows[static_cast<size_t>(y)];
    std::fill(row.begin() + 3 * first, row.begin() + 3 * last, 0.0F);
    for (size_t i = 0; i < taps.weights.size(); ++i) {
      const int64_t at = (taps.first + static_cast<int64_t>(i)) * image.size.width + first;
      add_row(image.pixels.data() + 3 * at, taps.weights[i], 3 * (last - first), row.data() + 3 * first);
    }
    sample_row(row.data(), columns, mirrored, size.width * size.height, planes + y * size.width);
  }
}

}  // namespace plimsoll
