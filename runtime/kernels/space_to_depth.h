#pragma once

#include "ir/support/align.h"
#include "kernels/cuda/conv/space_to_depth_sizes.h"
#include "runtime/kernels/conv.h"

namespace plimsoll {

// A strided convolution over few channels as one over more, without strides and pads: a block of stride x stride pixels
// of x becomes one pixel with all their channels, and the kernel's likewise (space to depth: Ying et al. 2018, "Image
// classification at supercomputer scale"). cuDNN has no kernels for an image's three channels; where kernel and stride
// are equal a matmul is left.
struct SpaceToDepthConvolution {
  cuda::SpaceToDepth x, w;
  Type x_type, w_type;  // of the blocks; w has x's dtype

  SpaceToDepthConvolution(const Attrs& attrs, const Type& x_image, llvm::ArrayRef<int64_t> w_shape,
                          llvm::ArrayRef<int64_t> y_shape) {
    const SlidingWindow window = window_of(attrs, w_shape);
    for (size_t d = 0; d < window.rank; ++d) {
      const size_t at = d + 2 - window.rank;  // a line is an image one pixel high
      const int64_t stride = window.strides[d], kernel = window.kernel[d], positions = y_shape[d + 1];
      const int64_t blocks = (kernel + stride - 1) / stride;
      x.size[at] = x_image.shape[d + 1];
      x.pad[at] = window.pads_begin[d];
      x.read[at] = std::min(x.size[at], (positions - 1) * stride + kernel - x.pad[at]);
      x.blocks[at] = positions - 1 + blocks;
      w.size[at] = w.read[at] = kernel;
      w.blocks[at] = blocks;
      x.block[at] = w.block[at] = stride;
    }
    x_type = finish(x, x_image.dtype, x_image.shape);
    w_type = finish(w, x_image.dtype, w_shape);
  }

  SpaceToDepthConvolution(const Attrs& attrs, const ConvTypes& types)
      : SpaceToDepthConvolution(attrs, types.x, types.w.shape, types.y.shape) {}

  // x and w as they lie in a workspace, x first.
  int64_t bytes() const { return align_to_tensor(x_type.bytes()) + align_to_tensor(w_type.bytes()); }

 private:
  static Type finish(cuda::SpaceToDepth& sizes, DType dtype, llvm::ArrayRef<int64_t> image) {
    sizes.batch = image.front();
    sizes.channels = image.back();
    sizes.block_channels = align_up(sizes.channels * sizes.block[0] * sizes.block[1], 8);
    return {dtype, {sizes.batch, sizes.blocks[0], sizes.blocks[1], sizes.block_channels}};
  }
};

// x has channels that cuDNN has no kernels for, and every pixel of a block is read.
bool takes_space_to_depth(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results);

}  // namespace plimsoll
