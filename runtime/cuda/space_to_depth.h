#pragma once

// A strided convolution over few channels as one over more, without strides and pads: a block of stride x stride pixels
// of x becomes one pixel with all their channels, and the kernel's likewise (space to depth: Ying et al. 2018, "Image
// classification at supercomputer scale"). cuDNN has no kernels for an image's three channels; where kernel and stride
// are equal a product is left. No CUDA here: plans are made where there is none.

#include "ir/ops/common/spatial.h"
#include "ir/support/align.h"
#include "kernels/cuda/conv/space_to_depth_sizes.h"

namespace plimsoll {

struct FoldedConvolution {
  cuda::Fold x, w;
  Type x_type, w_type;  // folded

  FoldedConvolution(const Attrs& attrs, const Type& x_image, const Type& w_image, llvm::ArrayRef<int64_t> y_shape) {
    const size_t rank = x_image.shape.size() - 2;
    const SlidingWindow window =
        llvm::cantFail(read_window(attrs, llvm::ArrayRef<int64_t>(w_image.shape).slice(1, rank)));
    for (size_t d = 0; d < rank; ++d) {
      const size_t at = d + 2 - rank;  // a line is an image one pixel high
      const int64_t stride = window.strides[d], kernel = window.kernel[d], positions = y_shape[d + 1];
      const int64_t blocks = (kernel + stride - 1) / stride;
      x.size[at] = x_image.shape[d + 1];
      x.pad[at] = window.pads_begin[d];
      x.read[at] = std::min(x.size[at], (positions - 1) * stride + kernel - x.pad[at]);
      x.folded[at] = positions - 1 + blocks;
      w.size[at] = w.read[at] = kernel;
      w.folded[at] = blocks;
      x.block[at] = w.block[at] = stride;
    }
    x_type = finish(x, x_image);
    w_type = finish(w, w_image);
  }

  // Both folds, x first, as they lie in a workspace.
  int64_t bytes() const { return align_to_tensor(x_type.bytes()) + align_to_tensor(w_type.bytes()); }

 private:
  static Type finish(cuda::Fold& fold, const Type& image) {
    fold.batch = image.shape.front();
    fold.channels = image.shape.back();
    fold.folded_channels = (fold.channels * fold.block[0] * fold.block[1] + 7) / 8 * 8;
    return {image.dtype, {fold.batch, fold.folded[0], fold.folded[1], fold.folded_channels}};
  }
};

}  // namespace plimsoll
