#pragma once

// How far a tensor is from another, for comparisons up to rounding.

#include "ir/type.h"

#include <cmath>

namespace plimsoll::testing {

// The 2-norm of a - b relative to that of b, which must not be 0.
inline double distance(const Tensor& a, const Tensor& b) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < a.type().elements(); ++i) {
    difference += (a.get(i) - b.get(i)) * (a.get(i) - b.get(i));
    norm += b.get(i) * b.get(i);
  }
  return std::sqrt(difference / norm);
}

}  // namespace plimsoll::testing
