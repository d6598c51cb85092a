#pragma once

#include "kernels/cuda/conv/depthwise_planes.h"
#include "runtime/kernels/conv.h"

namespace plimsoll {

// Do our own kernels take convolutions of these types at all? Channels are last, there are one or two spatial
// dimensions, and sizes are 32 bits wide.
inline bool has_convolution_sizes(const Attrs& attrs, const ConvTypes& types) {
  constexpr int64_t most = int64_t{1} << 30;
  if (!attrs.get_int("channels_last") || types.x.rank() < 3 || types.x.rank() > 4) return false;
  const SlidingWindow window = window_of(attrs, types.w.shape);
  for (size_t d = 0; d < window.rank; ++d)
    if (window.kernel[d] >= most || window.strides[d] >= most || window.dilations[d] >= most ||
        window.pads_begin[d] >= most || window.pads_begin[d] < 0 || types.x.shape[d + 1] >= most ||
        types.y.shape[d + 1] >= most)
      return false;
  return types.w.elements() < most && types.x.shape.back() < most && types.y.shape.back() < most;
}

// has_convolution_sizes holds.
inline cuda::ConvolutionSizes convolution_sizes(const Attrs& attrs, const ConvTypes& types) {
  const SlidingWindow window = window_of(attrs, types.w.shape);
  cuda::ConvolutionSizes sizes;
  sizes.batch = types.x.shape.front();
  for (size_t d = 0; d < window.rank; ++d) {
    const size_t at = d + 2 - window.rank;  // a line is an image one pixel high
    sizes.x[at] = static_cast<int>(types.x.shape[d + 1]);
    sizes.y[at] = static_cast<int>(types.y.shape[d + 1]);
    sizes.kernel[at] = static_cast<int>(window.kernel[d]);
    sizes.stride[at] = static_cast<int>(window.strides[d]);
    sizes.pad[at] = static_cast<int>(window.pads_begin[d]);
    sizes.dilation[at] = static_cast<int>(window.dilations[d]);
  }
  sizes.groups = static_cast<int>(attrs.get_int("groups", 1));
  sizes.x_channels = static_cast<int>(types.w.shape.back());
  sizes.y_channels = static_cast<int>(types.w.shape.front() / attrs.get_int("groups", 1));
  return sizes;
}

}  // namespace plimsoll
