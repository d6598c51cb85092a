#pragma once

#include <cstdint>

namespace plimsoll::cuda {

// Elements from one image, line and pixel of [batch, down, across, channels] to the next. Zeros: all lie one behind the
// other. Lines may be closer than pixels, and pixels may share elements.
struct ImagePitches {
  int64_t image = 0, line = 0, pixel = 0;
};

}  // namespace plimsoll::cuda
