#pragma once

// No CUDA here: plans are made where there is none.

#include <algorithm>

namespace plimsoll::cuda {

// Pixels that a box of the copy engine brings along one axis for a tile: from `first` of the tile's own first on. What
// a tap reads is `shift` behind that.
struct BoxSpan {
  int first, shift, pixels;

  // needed: pixels that all taps of a tile read; from: the first of them. A tile that is all there is brings no pixels
  // outside the image.
  BoxSpan(int image, int from, int needed, bool is_all)
      : first(is_all ? std::max(from, 0) : from),
        shift(from - first),
        pixels(is_all ? std::max(std::min(image, from + needed) - first, 1) : needed) {}
};

}  // namespace plimsoll::cuda
