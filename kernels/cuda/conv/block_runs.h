#pragma once

#include "kernels/cuda/common/image_pitches.h"
#include "kernels/cuda/conv/convolution_sizes.h"
#include "kernels/cuda/conv/space_to_depth_sizes.h"

namespace plimsoll::cuda {

// A convolution without strides and pads over blocks that space to depth made, as one whose pixels are the runs of
// neighbouring blocks under the kernel. Runs overlap, and the copy engine reads them where they lie. Lines and pixels
// of a line change places: taps that share what they read have to be neighbours across.
struct BlockRuns {
  ConvolutionSizes sizes;
  ImagePitches x, y;

  // `down` and `across`: pixels of y.
  BlockRuns(const SpaceToDepth& x_blocks, const SpaceToDepth& w_blocks, int64_t down, int64_t across,
            int64_t y_channels) {
    const int64_t line = x_blocks.blocks[1] * x_blocks.block_channels;
    sizes.batch = x_blocks.batch;
    sizes.x[0] = sizes.y[0] = static_cast<int>(across);
    sizes.x[1] = static_cast<int>(x_blocks.blocks[0]);
    sizes.y[1] = static_cast<int>(down);
    sizes.kernel[1] = static_cast<int>(w_blocks.blocks[0]);
    sizes.x_channels = static_cast<int>(w_blocks.blocks[1] * x_blocks.block_channels);
    sizes.y_channels = static_cast<int>(y_channels);
    x = {.image = x_blocks.blocks[0] * line, .line = x_blocks.block_channels, .pixel = line};
    y = {.image = down * across * y_channels, .line = y_channels, .pixel = across * y_channels};
  }
};

}  // namespace plimsoll::cuda
