#pragma once

// First values of DoRA's magnitudes: the norms of the weights' rows, of the numbers that the plan's steps read.

#include "ir/plan/plan.h"

#include <functional>

namespace plimsoll {

// `load` gives whole states by the names of what they are loaded from, in their types. `name` is that of a magnitude.
using LoadWhole = std::function<Status(llvm::StringRef name, const TensorView& into)>;
Status fill_first_magnitude(const Plan& plan, llvm::StringRef name, const LoadWhole& load, const TensorView& into);

}  // namespace plimsoll
