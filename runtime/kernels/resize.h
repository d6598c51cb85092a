#pragma once

#include "runtime/kernels/cuda_candidate.h"

#include <optional>

namespace plimsoll {

// Dimensions that change, outermost first. The gradient's scales are those of the forward op.
llvm::SmallVector<size_t, 3> resized_axes(const Attrs& attrs, llvm::ArrayRef<int64_t> in, llvm::ArrayRef<int64_t> out);

// The numbers of repetitions along the last two dimensions that change, of which the outer may be missing.
struct Repetitions {
  int64_t down = 1, across = 1;
  size_t axis = 0;  // that repeats across
};
// None where the call does anything else than to repeat each element of x along neighbouring dimensions.
std::optional<Repetitions> repetitions_of(const OpCall& call, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> y);

}  // namespace plimsoll
