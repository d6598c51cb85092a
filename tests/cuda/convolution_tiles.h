#pragma once

// Convolutions whose division into tiles is checked.

#include "kernels/cuda/conv/convolution_sizes.h"

namespace plimsoll::testing {

inline cuda::ConvolutionSizes image(int64_t batch, int size, int kernel, int stride, int groups, int channels) {
  cuda::ConvolutionSizes c;
  c.batch = batch;
  c.groups = groups;
  c.x_channels = c.y_channels = channels;
  for (int d = 0; d < 2; ++d) {
    c.x[d] = size;
    c.kernel[d] = kernel;
    c.stride[d] = stride;
    c.pad[d] = kernel / 2;
    c.y[d] = (size + 2 * c.pad[d] - kernel) / stride + 1;
  }
  return c;
}

// Pixel `column` of a row of an image, or -1.
inline int pixel_or_none(int column, int pixels) { return column >= 0 && column < pixels ? column : -1; }

}  // namespace plimsoll::testing
