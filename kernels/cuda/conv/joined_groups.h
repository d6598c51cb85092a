#pragma once

#include "kernels/cuda/conv/grouped_sizes.h"

namespace plimsoll::cuda {

// A convolution whose groups of a few channels lie side by side, `count` in one of `sizes`, so that both images have
// whole units of 8 channels in a group. Between groups that are joined there are no weights.
struct JoinedGroups {
  ConvolutionSizes sizes;
  int count = 1;

  // As it is where groups have odd numbers of channels, or their number is no multiple of those to be joined.
  explicit JoinedGroups(const ConvolutionSizes& c) : sizes(c) {
    constexpr int unit = 8;
    const int in_common = std::gcd(unit, std::gcd(c.x_channels, c.y_channels)), joined = unit / in_common;
    if (in_common == 1 || c.groups % joined != 0) return;
    count = joined;
    sizes.groups /= count, sizes.x_channels *= count, sizes.y_channels *= count;
  }
};

// fits_grouped_tiles of joined groups, which may be a single one.
inline bool fits_joined_tiles(const JoinedGroups& joined) {
  ConvolutionSizes c = joined.sizes;
  c.groups *= joined.count;
  return fits_grouped_tiles(c);
}

}  // namespace plimsoll::cuda
