#pragma once

// What conv and conv_transpose share: they are each other's gradient.

#include "ir/ops/spatial.h"

namespace plimsoll {

inline constexpr AttrRule groups_rule{"groups", AttrKind::Int, AttrNeed::Optional};
inline constexpr AttrRule shape_rule{"shape", AttrKind::Ints};

// The attributes of a gradient op whose result has that shape.
inline Attrs with_shape(Attrs attrs, llvm::ArrayRef<int64_t> shape) {
  attrs.set("shape", Ints(shape.begin(), shape.end()));
  return attrs;
}

// Of a convolution that gives y with weight w.
inline double product_flops(llvm::ArrayRef<int64_t> y, llvm::ArrayRef<int64_t> w) {
  return 2.0 * static_cast<double>(element_count(y)) * static_cast<double>(element_count(w.drop_front()));
}

// Visits (x, w, y) indices of every product in the convolution of x [N, C, in...] with
// w [M, C/groups, kernel...] to y [N, M, out...].
template <typename Visit>
void for_each_product(const Attrs& attrs, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> w,
                      llvm::ArrayRef<int64_t> y, Visit visit) {
  Taps taps(llvm::cantFail(read_window(attrs, spatial_of(w))), spatial_of(x), spatial_of(y));
  int64_t x_size = element_count(spatial_of(x)), w_size = element_count(spatial_of(w));
  int64_t y_size = element_count(spatial_of(y));
  int64_t group_outputs = w[0] / attrs.get_int("groups", 1), group_inputs = w[1];
  for (int64_t n = 0; n < x[0]; ++n)
    for (int64_t m = 0; m < w[0]; ++m)
      for (int64_t c = 0; c < group_inputs; ++c) {
        int64_t x_base = (n * x[1] + m / group_outputs * group_inputs + c) * x_size;
        int64_t w_base = (m * group_inputs + c) * w_size, y_base = (n * w[0] + m) * y_size;
        taps.for_each([&](int64_t input, int64_t kernel, int64_t output) {
          visit(x_base + input, w_base + kernel, y_base + output);
        });
      }
}

// A sum over products starts from zero, or from one bias value a channel.
inline std::vector<double> start_from_bias(const Type& y, const std::vector<double>& bias) {
  std::vector<double> values(static_cast<size_t>(y.elements()));
  if (bias.empty()) return values;
  size_t inner = static_cast<size_t>(element_count(spatial_of(y.shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = bias[i / inner % bias.size()];
  return values;
}

}  // namespace plimsoll
