#pragma once

// Max and average pooling of [N, C, spatial...] share this. Every channel of every sample
// is a plane of its own.

#include "ir/ops/common/spatial.h"

namespace plimsoll {

inline constexpr AttrSpecs window_attrs{
    {"kernel", AttrKind::Ints}, strides_attr, pads_attr, dilations_attr, {"ceil_mode", 0}};

// The result's shape for an input of shape x, all attributes checked. Both are in the layout the attributes name.
Result<Shape> pooled_shape(const Attrs& attrs, llvm::ArrayRef<int64_t> x);

// The windows of a pool from x to y, for references; shapes and indices are in the layout the attributes name.
class PoolWindows {
 public:
  PoolWindows(const Attrs& attrs, llvm::ArrayRef<int64_t> x_shape, llvm::ArrayRef<int64_t> y_shape)
      : x_(channels_first(attrs, x_shape)),
        y_(channels_first(attrs, y_shape)),
        in_x_(attrs, x_),
        in_y_(attrs, y_),
        taps_(llvm::cantFail(read_window(attrs, attrs.get_ints("kernel"))), spatial_of(x_), spatial_of(y_)) {}

  // visit(input, output, position, tap): flat indices in x and y of every element of every window, the window's place
  // among those of its plane, and the element's among those of the kernel.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (int64_t n = 0; n < x_[0]; ++n)
      for (int64_t c = 0; c < x_[1]; ++c)
        taps_.for_each([&](int64_t input, int64_t tap, int64_t output) {
          visit(in_x_.at(n, c, input), in_y_.at(n, c, output), output, tap);
        });
  }

 private:
  Shape x_, y_;  // channels first
  ChannelPlaces in_x_, in_y_;
  Taps taps_;
};

// One operation per element of each window; the last operand of a gradient op is dy.
double pool_flops(const OpCall& call, llvm::ArrayRef<Type> results);
double pool_grad_flops(const OpCall& call, llvm::ArrayRef<Type> results);

}  // namespace plimsoll
