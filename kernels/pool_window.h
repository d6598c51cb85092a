#pragma once

#include <cstdint>

namespace plimsoll {

// Three spatial dimensions; missing ones, in front, have size, kernel, stride and dilation 1 and no padding.
template <typename Int>
struct PoolWindow {
  Int in[3], out[3], kernel[3], strides[3], pads_begin[3], pads_end[3], dilations[3];
};

}  // namespace plimsoll
