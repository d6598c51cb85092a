#pragma once

// Convolutions over channels that cuDNN has no kernels for, such as an image's three: with zeros appended to the channels of x and w. No
// CUDA here: plans are made where there is none.

#include "ir/type.h"

namespace plimsoll {

inline constexpr int64_t channel_multiple = 8;  // of 16-bit floats

inline bool has_odd_channels(const Type& channels_last) { return channels_last.shape.back() % channel_multiple != 0; }

inline Type with_padded_channels(Type channels_last) {
  int64_t& channels = channels_last.shape.back();
  channels = (channels + channel_multiple - 1) / channel_multiple * channel_multiple;
  return channels_last;
}

// Of the padded tensor in a workspace.
inline int64_t padded_channel_bytes(const Type& channels_last) {
  return (with_padded_channels(channels_last).bytes() + 255) / 256 * 256;
}

}  // namespace plimsoll
