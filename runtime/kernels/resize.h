#pragma once

#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

// Dimensions that change, outermost first. The gradient's scales are those of the forward op.
llvm::SmallVector<size_t, 3> resized_axes(const Attrs& attrs, llvm::ArrayRef<int64_t> in, llvm::ArrayRef<int64_t> out);

}  // namespace plimsoll
