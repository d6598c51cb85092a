#pragma once

#include "kernels/cuda/conv/convolution_sizes.h"

namespace plimsoll::cuda {

// A convolution of images in groups with 3 x 3 taps.
inline ConvolutionSizes image(int64_t batch, int down, int across, int stride, int pad, int groups, int channels) {
  ConvolutionSizes c;
  c.batch = batch;
  c.groups = groups;
  c.x_channels = c.y_channels = channels;
  c.x[0] = down, c.x[1] = across;
  for (int d = 0; d < 2; ++d) {
    c.kernel[d] = 3;
    c.stride[d] = stride;
    c.pad[d] = pad;
    c.y[d] = (c.x[d] + 2 * pad - c.kernel[d]) / stride + 1;
  }
  return c;
}

}  // namespace plimsoll::cuda
