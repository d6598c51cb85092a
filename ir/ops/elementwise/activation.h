#pragma once

// Ops that have an activation inside them share this with it.

#include "ir/attrs.h"

namespace plimsoll {

// The derivative of gelu at x, of the form that {approximate} names.
double gelu_slope(double x, const Attrs& attrs);

}  // namespace plimsoll
