#pragma once

// Windows that slide over the spatial dimensions of [N, C, spatial...]: what
// convolutions and pools share. But for what says otherwise, shapes here are in that order. One to three spatial
// dimensions; missing ones count as 1.

#include "ir/ops/common/reference_math.h"

#include <array>

namespace plimsoll {

using Spatial = std::array<int64_t, 3>;

struct SlidingWindow {
  size_t rank = 0;
  Spatial kernel{1, 1, 1}, strides{1, 1, 1}, dilations{1, 1, 1}, pads_begin{}, pads_end{};

  // Input elements from the first to the last that the kernel touches.
  int64_t span(size_t d) const { return dilations[d] * (kernel[d] - 1) + 1; }
};

// {strides, pads (begins, then ends), dilations}, each with one entry a spatial dimension; absent ones mean 1 or 0.
inline constexpr AttrSpec strides_attr{"strides", AttrKind::Ints, AttrNeed::Optional};
inline constexpr AttrSpec pads_attr{"pads", AttrKind::Ints, AttrNeed::Optional};
inline constexpr AttrSpec dilations_attr{"dilations", AttrKind::Ints, AttrNeed::Optional};
Result<SlidingWindow> read_window(const Attrs& attrs, llvm::ArrayRef<int64_t> kernel);

enum class Rounding : uint8_t {
  Down,  // only whole windows
  Up,    // also a last one that sticks out, if it starts before the end padding
};
// How many positions the window has in each spatial dimension; an error when one has none.
Result<Shape> window_positions(const SlidingWindow& window, llvm::ArrayRef<int64_t> input, Rounding rounding);

// Every pair of a window position and a kernel element that meets the input, for references.
class Taps {
 public:
  Taps(const SlidingWindow& window, llvm::ArrayRef<int64_t> input, llvm::ArrayRef<int64_t> output);

  // visit(input, kernel, output), flat indices within one channel. A position's taps come in kernel order.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Tap& a : along_[0])
      for (const Tap& b : along_[1])
        for (const Tap& c : along_[2])
          visit((a.input * input_[1] + b.input) * input_[2] + c.input,
                (a.kernel * kernel_[1] + b.kernel) * kernel_[2] + c.kernel,
                (a.output * output_[1] + b.output) * output_[2] + c.output);
  }

 private:
  struct Tap {
    int64_t input, kernel, output;
  };
  std::array<std::vector<Tap>, 3> along_;
  Spatial input_, kernel_, output_;
};

inline llvm::ArrayRef<int64_t> spatial_of(llvm::ArrayRef<int64_t> shape) { return shape.drop_front(2); }

// Missing dimensions are 1.
Spatial to_spatial(llvm::ArrayRef<int64_t> dims);

// The shape [N, M, out...] of a convolution of [N, C, in...] with [M, C/groups, kernel...], all checked. All three are
// in the layout the attributes name.
Result<Shape> convolved_shape(const Attrs& attrs, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> w);

}  // namespace plimsoll
