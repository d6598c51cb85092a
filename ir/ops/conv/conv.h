#pragma once

// conv and conv_transpose share this: they are each other's gradient.

#include "ir/ops/common/spatial.h"

namespace plimsoll {

inline constexpr AttrSpec shape_attr{"shape", AttrKind::Ints};
inline constexpr AttrSpecs conv_attrs{strides_attr, pads_attr, dilations_attr, {"groups", 1}, channels_last_attr};

// The attributes of a gradient op whose result has that shape.
inline Attrs with_shape(Attrs attrs, llvm::ArrayRef<int64_t> shape) {
  attrs.set("shape", Ints(shape.begin(), shape.end()));
  return attrs;
}

// The convolution gives y with weight w.
inline double product_flops(llvm::ArrayRef<int64_t> y, llvm::ArrayRef<int64_t> w) {
  return 2.0 * static_cast<double>(element_count(y)) * static_cast<double>(element_count(w.drop_front()));
}

// Does the convolution with weight w multiply each pixel by it, so that with channels last it is a product of matrices?
bool is_product_of_pixels(const Attrs& attrs, llvm::ArrayRef<int64_t> w);

// What conv says of y alone, for conv_moments, and conv_dx of dx for conv_dx_sums.
void conv_gradient(GradContext& g);
std::vector<double> convolved(const ReferenceCall& call);
double conv_flops(const OpCall& call, llvm::ArrayRef<Type> results);
std::vector<double> convolved_gradient(const ReferenceCall& call, PortKey dx);
double conv_dx_flops(const OpCall& call, llvm::ArrayRef<Type> results);

// Visits (x, w, y) indices of every product in the convolution of x [N, C, in...] with
// w [M, C/groups, kernel...] to y [N, M, out...], shapes and indices in the layout the attributes name.
template <typename Visit>
void for_each_product(const Attrs& attrs, llvm::ArrayRef<int64_t> x_shape, llvm::ArrayRef<int64_t> w_shape,
                      llvm::ArrayRef<int64_t> y_shape, Visit visit) {
  const Shape x = channels_first(attrs, x_shape), w = channels_first(attrs, w_shape),
              y = channels_first(attrs, y_shape);
  const ChannelPlaces in_x(attrs, x), in_w(attrs, w), in_y(attrs, y);
  Taps taps(llvm::cantFail(read_window(attrs, spatial_of(w))), spatial_of(x), spatial_of(y));
  int64_t group_outputs = w[0] / attrs.get_int("groups", 1), group_inputs = w[1];
  for (int64_t n = 0; n < x[0]; ++n)
    for (int64_t m = 0; m < w[0]; ++m)
      for (int64_t c = 0; c < group_inputs; ++c) {
        int64_t x_channel = m / group_outputs * group_inputs + c;
        taps.for_each([&](int64_t input, int64_t kernel, int64_t output) {
          visit(in_x.at(n, x_channel, input), in_w.at(m, c, kernel), in_y.at(n, m, output));
        });
      }
}

// A sum over products starts from zero, or from one bias value per channel.
inline std::vector<double> start_from_bias(const Attrs& attrs, const Type& y, const std::vector<double>& bias) {
  std::vector<double> values(static_cast<size_t>(y.elements()));
  if (bias.empty()) return values;
  size_t inner = is_channels_last(attrs) ? 1 : static_cast<size_t>(element_count(spatial_of(y.shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = bias[i / inner % bias.size()];
  return values;
}

}  // namespace plimsoll
