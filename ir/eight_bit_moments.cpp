#include "ir/eight_bit_moments.h"

#include "ir/quantized_numbers.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {

float moment_scale(llvm::ArrayRef<float> block) {
  float largest = 0;
  for (float x : block) largest = std::max(largest, std::fabs(x));
  return std::max(largest, min_moment_scale);
}

uint8_t moment_code(float x, float scale, bool is_signed) {
  const std::array<float, 256>& thresholds = dynamic_thresholds(is_signed);
  const float share = x / scale;
  return static_cast<uint8_t>(std::upper_bound(thresholds.begin(), thresholds.end() - 1, share) - thresholds.begin());
}

float moment_of(uint8_t code, float scale, bool is_signed) { return dynamic_map(is_signed)[code] * scale; }

}  // namespace plimsoll
