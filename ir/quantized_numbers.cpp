#include "ir/quantized_numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace plimsoll {
namespace {

// As torch.linspace(0.1, 1, count) in f32: steps from the nearer end, each one fused operation.
std::vector<float> tenth_to_one(int64_t count) {
  const float first = 0.1F, last = 1.0F, step = (last - first) / static_cast<float>(count - 1);
  std::vector<float> points;
  for (int64_t k = 0; k < count; ++k)
    points.push_back(k < count / 2 ? std::fma(step, static_cast<float>(k), first)
                                   : std::fma(-step, static_cast<float>(count - 1 - k), last));
  return points;
}

std::array<float, 256> make_map(bool is_signed) {
  constexpr int decades = 7;
  std::vector<float> numbers{0.0F, 1.0F};
  for (int i = 0; i < decades; ++i) {
    const int64_t intervals = int64_t{1} << (is_signed ? i : i + 1);
    const std::vector<float> points = tenth_to_one(intervals + 1);
    const auto scale = static_cast<float>(std::pow(10.0, i - decades + 1));
    for (int64_t k = 0; k < intervals; ++k) {
      const float mean =
          scale * ((points[static_cast<std::size_t>(k)] + points[static_cast<std::size_t>(k + 1)]) / 2.0F);
      numbers.push_back(mean);
      if (is_signed) numbers.push_back(-mean);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  std::array<float, 256> map{};
  std::copy(numbers.begin(), numbers.end(), map.begin());
  return map;
}

// A number belongs to the upper neighbour where its distance from the lower one, rounded to f32, is at least half of
// theirs. Rounding may move that border by some numbers from the middle.
std::array<float, 256> make_thresholds(const std::array<float, 256>& map) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::array<float, 256> thresholds{};
  thresholds.back() = infinity;
  for (std::size_t code = 0; code + 1 < map.size(); ++code) {
    const float below = map[code], half = (map[code + 1] - below) * 0.5F;
    const auto is_above = [&](float x) { return x - below >= half; };
    float first = below + half;
    while (is_above(std::nextafter(first, -infinity))) first = std::nextafter(first, -infinity);
    while (!is_above(first)) first = std::nextafter(first, infinity);
    thresholds[code] = first;
  }
  return thresholds;
}

}  // namespace

const std::array<float, 256>& dynamic_thresholds(bool is_signed) {
  static const std::array<float, 256> of_signed = make_thresholds(dynamic_map(true)),
                                      of_unsigned = make_thresholds(dynamic_map(false));
  return is_signed ? of_signed : of_unsigned;
}

const std::array<float, 256>& dynamic_map(bool is_signed) {
  static const std::array<float, 256> signed_map = make_map(true), unsigned_map = make_map(false);
  return is_signed ? signed_map : unsigned_map;
}

}  // namespace plimsoll
