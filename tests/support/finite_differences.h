#pragma once

// Numerical gradients of a function of tensors, in double.

#include "ir/type.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <vector>

namespace plimsoll::testing {

// Returns the central difference for each element of `x`, which `f` reads. `x` is restored afterwards. The error is the
// squared step times the third derivative, plus 1e-16 over the step.
inline std::vector<double> finite_differences(const TensorView& x, llvm::function_ref<double()> f) {
  constexpr double step = 1e-5;
  std::vector<double> slopes;
  for (int64_t i = 0; i < x.elements(); ++i) {
    const double middle = x.get(i);
    x.set(i, middle + step);
    const double above = f();
    x.set(i, middle - step);
    const double below = f();
    x.set(i, middle);
    slopes.push_back((above - below) / (2 * step));
  }
  return slopes;
}

}  // namespace plimsoll::testing
