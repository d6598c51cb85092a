#pragma once

#include "ir/support/align.h"
#include "kernels/cuda/conv/space_to_batch_sizes.h"
#include "runtime/kernels/conv.h"

#include <optional>

namespace plimsoll {

// A convolution with wide dilations as one with narrower ones, over sub-images of x and y that take every `step`-th
// pixel: pixels that a dilation divisible by `step` keeps apart lie beside each other there, and the sub-images are
// images of a larger batch. cuDNN's kernels for Hopper know dilations up to 8.
struct SpaceToBatchConvolution {
  cuda::SpaceToBatch x, y;  // of one run
  Type x_type, y_type;      // their sub-images, as cuDNN sees them
  llvm::SmallVector<int64_t, 3> pads_begin, pads_end, dilations;
  int64_t runs = 1;  // equal chunks of the batch, so that sub-images stay small beside what they are made of

  // Takes two spatial dimensions with the channels last, which are whole vectors. None where dilations are narrow or
  // cannot be divided.
  static std::optional<SpaceToBatchConvolution> of(const Attrs& attrs, const Type& x, llvm::ArrayRef<int64_t> w,
                                                   llvm::ArrayRef<int64_t> y) {
    const SlidingWindow window = window_of(attrs, w);
    SpaceToBatchConvolution made;
    int64_t sub_images = 1;
    for (size_t d = 0; d < 2; ++d) {
      made.x.size[d] = x.shape[d + 1];
      made.y.size[d] = y[d + 1];
      const int64_t step = step_of(window.dilations[d], window.pads_begin[d], std::max(made.x.size[d], made.y.size[d]));
      if (step == 0 || window.strides[d] != 1) return std::nullopt;
      sub_images *= made.x.step[d] = made.y.step[d] = step;
      made.x.sub_size[d] = (made.x.size[d] + step - 1) / step;
      made.y.sub_size[d] = (made.y.size[d] + step - 1) / step;
      made.dilations.push_back(window.dilations[d] / step);
      made.pads_begin.push_back(window.pads_begin[d] / step);
      made.pads_end.push_back(made.y.sub_size[d] + made.dilations[d] * (window.kernel[d] - 1) - made.pads_begin[d] -
                              made.x.sub_size[d]);
      if (made.pads_end[d] < 0) return std::nullopt;
    }
    if (sub_images == 1) return std::nullopt;
    const int64_t batch = x.shape.front();
    for (;; ++made.runs)
      if (batch % made.runs == 0 &&
          (made.set_batch(batch / made.runs, sub_images, x, y.back()) <= max_bytes || made.runs == batch))
        return made;
  }

  // Sub-images of x and of y as they lie in a workspace, x's first.
  int64_t bytes() const { return align_to_tensor(x_type.bytes()) + align_to_tensor(y_type.bytes()); }

 private:
  static constexpr int64_t max_dilation = 8, max_bytes = int64_t{256} << 20;

  // Leaves a dilation that is not too wide, and of those the one that leaves the fewest pixels of a sub-image empty; 0
  // where there is none.
  static int64_t step_of(int64_t dilation, int64_t pads, int64_t size) {
    int64_t best = 0, least = 0;
    for (int64_t step = 1; step <= dilation; ++step) {
      if (dilation % step != 0 || pads % step != 0 || dilation / step > max_dilation) continue;
      if (const int64_t whole = align_up(size, step); best == 0 || whole < least) best = step, least = whole;
    }
    return best;
  }

  int64_t set_batch(int64_t batch, int64_t sub_images, const Type& image, int64_t y_channels) {
    auto set = [&](cuda::SpaceToBatch& sizes, int64_t channels) {
      sizes.batch = batch;
      sizes.pixel_bytes = channels * dtype_bytes(image.dtype);
      return Type(image.dtype, {batch * sub_images, sizes.sub_size[0], sizes.sub_size[1], channels});
    };
    x_type = set(x, image.shape.back());
    y_type = set(y, y_channels);
    return bytes();
  }
};

}  // namespace plimsoll
