#pragma once

// Slopes of a function of tensors in double, which no derivation made.

#include "ir/type.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <vector>

namespace plimsoll::testing {

// By element of `x`, which `f` reads and which is as it was afterwards: central differences, off by the square of their
// step times the third derivative and by 1e-16 over their step.
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
