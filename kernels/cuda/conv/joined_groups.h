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

// What runs of channels take: groups of whole units, or any channels but fewer than a unit without groups.
inline bool fits_runs_of_channels(const JoinedGroups& joined) {
  constexpr int max_channels = 31 * unit_channels, max_taps = 1024;
  constexpr int64_t most = int64_t{1} << 30;
  const ConvolutionSizes& c = joined.sizes;
  const bool has_whole_units = c.x_channels % unit_channels == 0 && c.y_channels % unit_channels == 0;
  const bool has_units = std::min(c.x_channels, c.y_channels) >= unit_channels;
  return (has_whole_units || (c.groups == 1 && has_units)) && std::max(c.x_channels, c.y_channels) <= max_channels &&
         c.taps() <= max_taps && c.weights() < most && c.batch < most && has_short_distances(c);
}

}  // namespace plimsoll::cuda
