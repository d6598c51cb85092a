#pragma once

// What max and average pooling of [N, C, spatial...] share. Every channel of every sample
// is a plane of its own.

#include "ir/ops/spatial.h"

namespace plimsoll {

inline constexpr AttrRule kernel_rule{"kernel", AttrKind::Ints};
inline constexpr AttrRule ceil_rule{"ceil_mode", AttrKind::Int, AttrNeed::Optional};

// The result's shape for an input of shape x, all attributes checked.
Result<Shape> pooled_shape(const Attrs& attrs, llvm::ArrayRef<int64_t> x);

// The planes of a pool from x to y, for references.
struct Planes {
  Taps taps;
  int64_t count, x_size, y_size;

  Planes(const Attrs& attrs, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y)
      : taps(llvm::cantFail(read_window(attrs, attrs.get_ints("kernel"))), spatial_of(x), spatial_of(y)),
        count(x[0] * x[1]), x_size(element_count(spatial_of(x))), y_size(element_count(spatial_of(y))) {}
};

// One operation an element of each window; the last operand of a gradient op is dy.
double pool_flops(const OpCall& call, llvm::ArrayRef<Type> results);
double pool_grad_flops(const OpCall& call, llvm::ArrayRef<Type> results);

}  // namespace plimsoll
